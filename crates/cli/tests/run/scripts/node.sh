# needs: node
# Files in node: its thread pool, streams, watching of attributes, child processes, modules.
set -eu
cat >main.js <<'X'
const fs = require('fs'), fsp = fs.promises, path = require('path'), cp = require('child_process');
(async () => {
  await fsp.mkdir('a/b/c', { recursive: true });
  await Promise.all([...Array(200).keys()].map(i => fsp.writeFile(`a/f${i}`, 'x'.repeat(i))));
  console.log((await fsp.readdir('a')).length, (await fsp.stat('a/f77')).size);
  const entries = await fsp.readdir('a', { withFileTypes: true }); console.log(entries.filter(e => e.isDirectory()).map(e => e.name));
  await Promise.all([...Array(100).keys()].map(i => fsp.rename(`a/f${i}`, `a/b/g${i}`))); console.log(fs.readdirSync('a/b').length);
  await new Promise(r => fs.createReadStream('a/f150').pipe(fs.createWriteStream('a/copy')).on('finish', r)); console.log(fs.statSync('a/copy').size);
  fs.appendFileSync('log', 'one\n'); fs.appendFileSync('log', 'two\n'); console.log(fs.readFileSync('log', 'utf8'));
  fs.symlinkSync('log', 'link'); console.log(fs.readlinkSync('link'), fs.realpathSync('link').endsWith('/log'), fs.lstatSync('link').isSymbolicLink());
  fs.utimesSync('log', 1000, 2000); console.log(fs.statSync('log').mtimeMs); fs.chmodSync('log', 0o600); fs.copyFileSync('log', 'log2'); fs.truncateSync('log2', 2); console.log(fs.readFileSync('log2', 'utf8'));
  const fd = fs.openSync('rw', 'w+'); fs.writeSync(fd, 'hello', 3); const b = Buffer.alloc(8); console.log(fs.readSync(fd, b, 0, 8, 0), b.toString('latin1').replace(/\0/g, '.')); fs.ftruncateSync(fd, 4); fs.closeSync(fd);
  try { fs.readFileSync('none') } catch (e) { console.log(e.code) } try { fs.rmdirSync('a') } catch (e) { console.log(e.code) } try { fs.mkdirSync('a') } catch (e) { console.log(e.code) }
  console.log(cp.execSync('ls a/b | wc -l; pwd | sed "s|.*/||"', { cwd: 'a' }).toString().trim()); console.log(cp.spawnSync('cat', { stdio: [fs.openSync('log'), 'pipe', 'inherit'] }).stdout.toString().length);
  fs.writeFileSync('mod.js', 'exports.x = 5'); console.log(require('./mod.js').x, require.resolve('./mod').endsWith('/mod.js')); fs.mkdtempSync('tmp-'); fs.readdirSync('.').filter(n => n.startsWith('tmp-')).forEach(n => fs.rmdirSync(n));
  for await (const d of await fsp.opendir('a/b/c')) console.log(d); await fsp.rm('a', { recursive: true }); console.log(fs.existsSync('a')); process.chdir('/'); console.log(process.cwd());
})();
X
node main.js; node -e 'console.log(process.cwd().split("/").pop())'; printf 'import fs from "fs"; console.log(fs.readdirSync(".").length)' >m.mjs; node m.mjs
