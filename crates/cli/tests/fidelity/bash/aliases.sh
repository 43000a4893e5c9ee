alias
alias a="echo alias"
a
shopt -s expand_aliases
a
