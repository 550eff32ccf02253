// Serves a folder by two workers of a cluster, and digests what is posted: cluster.js PORT FOLDER [WORKERS]. With 0 workers it
// serves by itself.
'use strict';

const cluster = require('cluster');
const crypto = require('crypto');
const fs = require('fs');
const http = require('http');
const path = require('path');
const stream = require('stream');

const [port, folder, workers] = [Number(process.argv[2]), process.argv[3], Number(process.argv[4] ?? 2)];

function answer(request, response) {
  response.setHeader('X-Worker', String(cluster.worker?.id ?? 0));
  if (request.method === 'POST') {
    const hash = crypto.createHash('sha256');
    request.on('data', (part) => hash.update(part));
    request.on('end', () => response.end(hash.digest('hex')));
    return;
  }
  const file = path.join(folder, path.basename(request.url.split('?')[0]));
  fs.stat(file, (error, found) => {
    if (error) {
      response.writeHead(404);
      response.end();
      return;
    }
    response.setHeader('Content-Length', found.size);
    // A client that has the whole body may close before the file's end is read: the file is closed then, too.
    stream.pipeline(fs.createReadStream(file), response, () => {});
  });
}

if (cluster.isPrimary && workers > 0) {
  for (let n = 0; n < workers; n++) cluster.fork();
  cluster.on('exit', () => process.exit(1));
} else {
  http.createServer(answer).listen(port, '0.0.0.0');
}
