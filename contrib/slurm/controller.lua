-- What slurmctld-prolog and slurmctld-epilog share: the script of the job, and what the plugin
-- burst_buffer/lua would give to the functions of burst_buffer.lua.

local function log(...)
    io.stderr:write(string.format(...), "\n")
end
slurm = { SUCCESS = 0, ERROR = -1, log_info = log, log_error = log }
dofile((arg[0]:match("^(.*/)") or "./") .. "burst_buffer.lua")

-- Calls `work` with the job, a file with its script, and its user; ends with status 1 if that fails.
-- Jobs without a batch script or without directives have no storage.
function controller(work)
    -- A number: nothing in it has to be quoted.
    local job = (os.getenv("SLURM_JOB_ID") or ""):match("^%d+$")
    if not job then
        log("longhaul: SLURM_JOB_ID is not set: this is run by slurmctld")
        os.exit(1)
    end
    local script = os.tmpname()
    os.execute("scontrol write batch_script " .. job .. " - > '" .. script .. "' 2>/dev/null")
    local status, why = slurm.SUCCESS, nil
    if longhaul_is_asked(script) then
        status, why = work(job, script, os.getenv("SLURM_JOB_UID"), os.getenv("SLURM_JOB_GID"))
    end
    os.remove(script)
    if status ~= slurm.SUCCESS then
        log("longhaul: job %s: %s", job, why or "")
        os.exit(1)
    end
end
