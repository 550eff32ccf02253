// A server of Node's http that writes a line for each request it sees: the id that the proxy gave it. What it cannot read is a line, too.
// Arguments: PORT LOG
const fs = require('fs'), http = require('http');
const [port, log] = process.argv.slice(2);
const file = fs.openSync(log, 'a');
const saw = (id, what) => fs.writeSync(file, `${id || '-'} ${what}\n`);
const server = http.createServer({ keepAliveTimeout: 60000 }, (request, response) => {
  saw(request.headers['x-request-id'], `${request.method} ${request.url}`);
  request.on('error', () => {});
  request.resume();
  request.on('end', () => response.end('ok'.repeat(100)));
});
server.on('clientError', (error, socket) => {
  if (error.code !== 'ECONNRESET' && error.code !== 'HPE_INVALID_EOF_STATE') saw('-', `invalid: ${error.code}`);
  socket.destroy();
});
server.listen(+port);
