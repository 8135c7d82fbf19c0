// esbuild gives an ES module the whole of a CommonJS one as its default, as node does; Grafana means the default in it.
module.exports = require('../node_modules/react-custom-scrollbars-2/lib/index.js').default;
