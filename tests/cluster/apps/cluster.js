// Serves a folder by two workers of a cluster, and digests what is posted: cluster.js PORT FOLDER.
'use strict';

const cluster = require('cluster');
const crypto = require('crypto');
const fs = require('fs');
const http = require('http');
const path = require('path');

const [port, folder] = [Number(process.argv[2]), process.argv[3]];

function answer(request, response) {
  response.setHeader('X-Worker', String(cluster.worker.id));
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
    fs.createReadStream(file).pipe(response);
  });
}

if (cluster.isPrimary) {
  cluster.fork();
  cluster.fork();
  cluster.on('exit', () => process.exit(1));
} else {
  http.createServer(answer).listen(port, '0.0.0.0');
}
