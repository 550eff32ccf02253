// Node's http and https with kept connections, and its http2 with 1,000 streams on a session. Arguments: URL CA FILE
const crypto = require('crypto'), fs = require('fs'), http = require('http'), http2 = require('http2'), https = require('https');
const [base, ca, file] = process.argv.slice(2);
const data = fs.readFileSync(file), digest = (bytes) => crypto.createHash('sha256').update(bytes).digest('hex');
const certificate = fs.readFileSync(ca), wanted = digest(data);
const library = base.startsWith('https') ? https : http;
const agent = new library.Agent({ keepAlive: true, maxSockets: 16, ca: certificate });
let opened = 0;

const collected = (stream) => new Promise((done, fail) => {
  const parts = [];
  stream.on('data', (part) => parts.push(part)).on('error', fail).on('end', () => done(Buffer.concat(parts)));
});

const request = (path, method, body) => new Promise((done, fail) => {
  const sent = library.request(base + path, { method, agent }, (answer) => {
    collected(answer).then((bytes) => (answer.statusCode === 200 ? done(bytes) : fail(new Error(`${path}: ${answer.statusCode}`))), fail);
  });
  sent.on('error', fail).on('socket', (socket) => { if (!socket.counted) { socket.counted = true; opened += 1; } });
  if (body) fs.createReadStream(body).pipe(sent); else sent.end();
});

const check = (is, what) => { if (!is) throw new Error(what); };

async function byHttp() {
  const got = await Promise.all(Array.from({ length: 1000 }, () => request('/1KiB', 'GET')));
  check(got.every((bytes) => bytes.length === 1024), 'lengths');
  check(digest(await request('/big', 'GET')) === wanted, 'big');
  check((await request('/upload', 'PUT', file)).toString().trim() === wanted, 'upload');
  agent.destroy();
  check(opened <= 17, `${opened} connections`);
}

async function byHttp2() {
  const session = http2.connect(base, { ca: certificate });
  const failed = new Promise((_, fail) => session.on('error', fail));
  const one = (head, body) => {
    const stream = session.request(head);
    if (body) fs.createReadStream(body).pipe(stream); else stream.end();
    const status = new Promise((done) => stream.on('response', (fields) => done(fields[':status'])));
    return Promise.all([status, collected(stream)]);
  };
  const streams = Array.from({ length: 1000 }, () => one({ ':path': '/1KiB' }));
  const got = await Promise.race([Promise.all(streams), failed]);
  check(got.every(([status, bytes]) => status === 200 && bytes.length === 1024), 'streams');
  const both = [one({ ':path': '/big' }), one({ ':path': '/upload', ':method': 'POST' }, file)];
  const [[, big], [, upload]] = await Promise.race([Promise.all(both), failed]);
  check(digest(big) === wanted, 'big by http2');
  check(upload.toString().trim() === wanted, 'upload by http2');
  await new Promise((done) => session.close(done));
}

byHttp().then(byHttp2).then(() => {
  console.log(`http: 1002 requests on ${opened} connections; http2: 1002 on 1; 0 failed`);
  process.exit(0);
}, (error) => { console.error(error); process.exit(1); });
