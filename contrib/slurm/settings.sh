# Settings of prolog and epilog, from longhaul.conf in the directory $here.
# shellcheck shell=sh disable=SC2034

program=longhaul pools='' catalog='' mounts=/mnt/longhaul wait=300
node_nqn='nqn.2026-11.io.longhaul:node:{}'
while IFS='=' read -r key value || [ -n "$key" ]; do
    case $key in
    program) program=$value ;;
    pools) pools=$value ;;
    catalog) catalog=$value ;;
    mounts) mounts=$value ;;
    node_nqn) node_nqn=$value ;;
    wait) wait=$value ;;
    env.*) export "${key#env.}=$value" ;;
    esac
done < "$here/longhaul.conf"

say() { echo "longhaul: job $SLURM_JOB_ID: $*" >&2; }
