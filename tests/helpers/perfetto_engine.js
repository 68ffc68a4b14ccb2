// The trace processor of Perfetto's pages, without a browser: requests on standard input, replies on standard output.
//
//   node perfetto_engine.js engine_bundle.js < requests > replies
//
// The bundle wants to be a web worker, so it gets a scope of its own with the little that it asks of one.
'use strict';
const fs = require('fs');
const path = require('path');
const v8 = require('v8');
const vm = require('vm');

v8.setFlagsFromString('--liftoff-only'); // fast code of 11 MB takes longer to make than to do without

process.on('uncaughtException', (error) => { // else Node shows the bundle, which is one line
  console.error(error.stack || error);
  process.exit(1);
});

const bundle = process.argv[2];
const scope = vm.createContext({
  TextDecoder, TextEncoder, URL, performance, setTimeout, clearTimeout, queueMicrotask,
  console: { log() {}, warn() {}, error: console.error },
  location: { href: `file://${bundle}` },
  WorkerGlobalScope() {},
  importScripts() {},
});
scope.self = scope;
const Bytes = vm.runInContext('Uint8Array', scope); // of that scope: the engine asks what its bytes are an instance of

scope.XMLHttpRequest = class {
  open(method, url) {
    this.file = path.join(path.dirname(bundle), path.basename(url));
  }
  send() {
    this.response = Bytes.from(fs.readFileSync(this.file)).buffer;
    this.status = 200;
  }
};

vm.runInContext(fs.readFileSync(bundle, 'utf8'), scope, { filename: bundle });
const port = { postMessage: (reply) => fs.writeSync(1, reply) };
scope.onmessage({ data: port });
setTimeout(() => port.onmessage({ data: Bytes.from(fs.readFileSync(0)) })); // after what the engine still has to do to be ready
