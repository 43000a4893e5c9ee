process.stderr.write(`${process.getActiveResourcesInfo()}|${process._getActiveHandles().length}\n`);
