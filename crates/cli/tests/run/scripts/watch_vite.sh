# needs: node npm
# npm: vite@8.3.8
# vite's server for development answers with what a file holds, and tells of each change.
set -eu
mkdir src
echo 'export const answer = "first"' >src/part.js
echo '<script type="module" src="/src/part.js"></script>' >index.html
cat >serve.mjs <<'Y'
import { renameSync, rmSync, writeFileSync } from 'node:fs';
import { pathToFileURL } from 'node:url';
const entry = process.env.PACKAGES + '/node_modules/vite/dist/node/index.js';
const { createServer } = await import(pathToFileURL(entry).href);
const server = await createServer({ root: process.cwd(), logLevel: 'error', configFile: false, server: { port: 0 } });
await server.listen();
const address = `http://localhost:${server.httpServer.address().port}/src/part.js`;
setTimeout(() => { console.log('no event, or an old answer'); process.exit(1); }, 600000).unref();
// The watcher drops events that come within milliseconds of others, so each change is repeated.
const until = (events, act) => new Promise(done => {
  const again = setInterval(act, 2000);
  const told = path => {
    if (!path.endsWith('part.js')) return;
    events.forEach(event => server.watcher.off(event, told));
    clearInterval(again);
    done();
  };
  events.forEach(event => server.watcher.on(event, told));
  act();
});
// The server reads the file anew some time after the event.
const answers = async text => {
  while (!(await (await fetch(address)).text()).includes(`"${text}"`));
  console.log(text);
};
await answers('first');
await until(['change'], () => writeFileSync('src/part.js', 'export const answer = "second"\n'));
await answers('second');
await until(['change', 'add'], () => {
  writeFileSync('src/other', 'export const answer = "third"\n');
  renameSync('src/other', 'src/part.js');
});
await answers('third');
await until(['unlink'], () => rmSync('src/part.js', { force: true }));
await until(['add'], () => writeFileSync('src/part.js', 'export const answer = "fourth"\n'));
await answers('fourth');
await server.close();
Y
node serve.mjs
rm -rf node_modules
