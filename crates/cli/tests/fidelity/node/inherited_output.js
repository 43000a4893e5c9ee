require('child_process').execFileSync('sh', ['-c', 'head -c 3000000 /dev/zero | tr "\\0" "x"'], { stdio: 'inherit' });
