echo started from $BASH_SOURCE
