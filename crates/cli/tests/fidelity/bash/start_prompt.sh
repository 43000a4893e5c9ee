# env: PS4=>>
# anew: Bash reads it when it starts
echo "$-|$SHLVL|$_|$SECONDS|${IFS@Q}|$PS4|$BASH_ENV"
shopt -o
locale 2>/dev/null
date -d @0
env
cd tmp && pwd
a=1:2; echo $a
echo end
