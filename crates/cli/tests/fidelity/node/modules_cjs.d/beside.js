exports.where = __filename;
exports.parent = module.parent?.id;
exports.main = require.main === module;
exports.stack = () => new Error('here').stack;
