#!/bin/sh
# The entry point of a worker's container: finds a Python >= 3.8 and becomes Stoker's supervisor. In an image that has none
# it becomes the command itself, with torchrun's environment as far as a shell can make it, and says so.
# Called as `/bin/sh /stoker/start <command> [argument …]`; needs nothing but a POSIX shell.

stopped=
trap 'stopped=1' TERM INT
here=${0%/*}
[ "$here" != "$0" ] || here=.

fits() {
    [ -n "$1" ] && [ -x "$1" ] && "$1" -I -S -c 'import sys; sys.exit(sys.version_info < (3, 8))' >/dev/null 2>&1
}

python=
for name in python3 python python3.14 python3.13 python3.12 python3.11 python3.10 python3.9 python3.8; do
    found=$(command -v "$name" 2>/dev/null) || continue
    if fits "$found"; then
        python=$found
        break
    fi
done
if [ -z "$python" ]; then
    for found in /usr/bin/python3 /usr/local/bin/python3 /opt/conda/bin/python3 /opt/venv/bin/python3 \
        /opt/python/bin/python3 /venv/bin/python3 /usr/libexec/platform-python /opt/*/bin/python3; do
        if fits "$found"; then
            python=$found
            break
        fi
    done
fi
if [ -n "$python" ] && [ -r "$here/worker.pyz" ]; then
    # A stop that came meanwhile goes to the supervisor, which then starts nothing.
    exec "$python" -I -S "$here/worker.pyz" --pod ${stopped:+--stop} -- "$@"
fi

say() {
    echo "[stoker] $*" >&2
}

why="this image has no Python >= 3.8"
[ -z "$python" ] || why="there is no $here/worker.pyz to read"
say "$why: the command runs without Stoker's supervisor (its log is kept by the cluster only, one process per worker,"
say "no exit record, no progress)"
if [ -n "$stopped" ]; then
    say "stopped before it was started"
    exit 75
fi
if [ $# -eq 0 ]; then
    say "there is no command to run"
    exit 64
fi
if [ -n "${STOKER_CODE-}" ]; then
    say "the job's code $STOKER_CODE can't be fetched without Python: use an image that has Python >= 3.8, or one that holds"
    say "the code"
    exit 126
fi
worker=${STOKER_WORKER:-0} workers=${STOKER_WORKERS:-1}
RANK=$worker LOCAL_RANK=0 WORLD_SIZE=$workers LOCAL_WORLD_SIZE=1 GROUP_RANK=$worker GROUP_WORLD_SIZE=$workers
MASTER_ADDR=${MASTER_ADDR:-127.0.0.1} MASTER_PORT=${MASTER_PORT:-29400}
case ${NVIDIA_VISIBLE_DEVICES-} in
'' | all | none | void) STOKER_GPU_UUIDS= gpus=${STOKER_GPUS:-1} ;;
*)
    STOKER_GPU_UUIDS=$NVIDIA_VISIBLE_DEVICES
    gpus=$(IFS=,; set -f; set -- $NVIDIA_VISIBLE_DEVICES; echo $#)
    ;;
esac
[ "$gpus" -gt 0 ] 2>/dev/null || gpus=1
PET_NNODES=$workers PET_NODE_RANK=$worker PET_NPROC_PER_NODE=$gpus
PET_MASTER_ADDR=$MASTER_ADDR PET_MASTER_PORT=$MASTER_PORT
CUDA_DEVICE_ORDER=PCI_BUS_ID
if [ -z "${HOME-}" ] || [ "$HOME" = / ] || [ ! -w "$HOME" ]; then
    HOME=/tmp
fi
export RANK LOCAL_RANK WORLD_SIZE LOCAL_WORLD_SIZE GROUP_RANK GROUP_WORLD_SIZE MASTER_ADDR MASTER_PORT STOKER_GPU_UUIDS
export PET_NNODES PET_NODE_RANK PET_NPROC_PER_NODE PET_MASTER_ADDR PET_MASTER_PORT CUDA_DEVICE_ORDER HOME
if [ "${STOKER_SIMULATED_GPUS-}" = 1 ]; then
    CUDA_VISIBLE_DEVICES=
    export CUDA_VISIBLE_DEVICES
fi
for folder in "${STOKER_CHECKPOINT_DIR-}" "${STOKER_OUTPUT_DIR-}"; do
    [ -n "$folder" ] || continue
    if ! mkdir -p "$folder" || [ ! -w "$folder" ]; then
        say "can't use $folder: it may not be written by user $(id -u 2>/dev/null); give the volume to it (runAsUser or"
        say "fsGroup in the security of the job's TrainingRuntime)"
        exit 126
    fi
done
if [ -n "${STOKER_WORKING_DIR-}" ]; then
    cd "$STOKER_WORKING_DIR" || exit 126
elif [ "$(pwd)" = / ] && [ -n "${STOKER_OUTPUT_DIR-}" ]; then
    cd "$STOKER_OUTPUT_DIR" || exit 126
fi
trap - TERM INT
exec "$@"
