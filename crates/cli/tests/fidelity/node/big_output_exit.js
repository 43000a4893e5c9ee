console.log('z'.repeat(3000000));
process.exit(4);
