pwd; pwd -P; echo "$PWD ${OLDPWD-unset}"
declare -p OLDPWD
cd -; echo $?
cd /tmp; echo "$OLDPWD"; cd -
dirs; pushd /usr; popd
ls -A; ls -A /tmp
