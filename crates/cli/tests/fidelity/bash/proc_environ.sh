# differs: /proc/self/environ
tr "\0" "\n" < /proc/$$/environ
