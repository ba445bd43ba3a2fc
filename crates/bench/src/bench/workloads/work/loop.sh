# Small steps of a script: $1 times three commands, of which two are programs.
i=0
while [ $i -lt "$1" ]; do
  i=$((i + 1))
  echo x > a
  cat a > b
  rm a b
done
