# A project of npm, in the directory `modules`, with $1 dependencies of 20 files each, all local.
mkdir modules && cd modules || exit 1
dependencies=
i=0
while [ $i -lt "$1" ]; do
  i=$((i + 1))
  mkdir -p package/lib
  echo "{\"name\": \"generated-$i\", \"version\": \"1.0.0\"}" > package/package.json
  j=0
  while [ $j -lt 20 ]; do
    j=$((j + 1))
    echo "module.exports = $i * $j;" > package/lib/$j.js
  done
  tar -czf generated-$i.tgz package
  rm -r package
  dependencies="$dependencies${dependencies:+, }\"generated-$i\": \"file:generated-$i.tgz\""
done
echo "{\"name\": \"generated\", \"version\": \"1.0.0\", \"dependencies\": {$dependencies}}" > package.json
npm install --package-lock-only --offline --no-audit --no-fund --loglevel=error
