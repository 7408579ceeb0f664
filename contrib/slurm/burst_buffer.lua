-- Storage of jobs from pools of Longhaul, for Slurm's plugin burst_buffer/lua: docs/slurm.md.
--
-- Slurm loads this file anew for each call, with Lua 5.1 to 5.4, and passes every argument as a
-- string. slurm_bb_job_process and slurm_bb_paths hold up slurmctld, and start no program. The scripts
-- slurmctld-prolog and slurmctld-epilog call the same functions where burst buffers are not used.
--
-- A program is started through a shell: everything in its command line goes through `quote`.

local DIRECTIVE = "LONGHAUL"
-- Slurm counts capacity in this unit.
local MIB = 1024 * 1024
-- Seconds that a volume may stay in the hands of a host that was lost or has not unmounted it yet: the
-- lease of an intent is 30 s, and an array is taken over in about as long.
local PATIENCE = 120
-- Most volumes of a job: what one `pool allocate` makes.
local MAX_NODES = 1024
-- Names that the host gives to the volumes of a job with `nodes=`, until the nodes are known.
local RANK_NQN = "nqn.2026-11.io.longhaul:rank:{}"

local LAYOUTS = { parity = true, ["double-parity"] = true, mirror = true, ["stripe+mirror"] = true, stripe = true }
local FILE_SYSTEMS = { xfs = true, ext4 = true }

-- Settings ------------------------------------------------------------------------------------------

local settings = {
    program = "longhaul",
    pools = "",
    catalog = "",
    hostnqn = "",
    mounts = "/mnt/longhaul",
    staging = "/run/longhaul/staging",
    node_nqn = "nqn.2026-11.io.longhaul:node:{}",
    lifetime = "30d",
    sudo = "sudo -n",
}
-- NAME=VALUE of the lines `env.NAME=VALUE`.
local environment = {}

-- Reads longhaul.conf beside this file: KEY=VALUE lines and comments.
local function read_settings()
    local here = debug.getinfo(1, "S").source:match("^@(.*/)") or "./"
    local file = io.open(here .. "longhaul.conf")
    if not file then
        return
    end
    for line in file:lines() do
        local key, value = line:match("^%s*([%w_.]+)=(.-)%s*$")
        local name = key and key:match("^env%.(.+)$")
        if name then
            environment[#environment + 1] = name .. "=" .. value
        elseif key then
            settings[key] = value
        end
    end
    file:close()
end
read_settings()

-- Programs ------------------------------------------------------------------------------------------

-- One word of a shell, whatever is in it.
local function quote(text)
    local quoted = tostring(text):gsub("'", "'\\''")
    return "'" .. quoted .. "'"
end

local function join(words)
    local quoted = {}
    for index, word in ipairs(words) do
        quoted[index] = quote(word)
    end
    return table.concat(quoted, " ")
end

-- Runs a command line, and returns its exit status and all that it printed. The status is printed by
-- the shell, since Lua 5.1 does not return that of a pipe.
local function shell(line)
    if line:find("%z") then
        return 2, "a NUL byte cannot be passed to a program"
    end
    local pipe = io.popen("{ " .. line .. "; } 2>&1 </dev/null; printf '\\n%d\\n' $?")
    if not pipe then
        return 1, "no program can be started"
    end
    local text = pipe:read("*a")
    pipe:close()
    local said, status = text:match("^(.*)\n(%d+)\n$")
    return tonumber(status) or 1, ((said or text):gsub("%s+$", ""))
end

local function command(words)
    local all = { "env" }
    for _, pair in ipairs(environment) do
        all[#all + 1] = pair
    end
    all[#all + 1] = settings.program
    for _, word in ipairs(words) do
        all[#all + 1] = word
    end
    return join(all)
end

-- Adds the options that commands for pools take.
local function for_pools(words)
    local all = { "--json" }
    for _, word in ipairs(words) do
        all[#all + 1] = word
    end
    for option, value in pairs({ ["--catalog"] = settings.catalog, ["--hostnqn"] = settings.hostnqn }) do
        if value ~= "" then
            all[#all + 1] = option
            all[#all + 1] = value
        end
    end
    return all
end

-- Splits what was printed into events (lines of JSON) and the last line for people.
local function events_of(text)
    local events, message = {}, ""
    for line in text:gmatch("[^\n]+") do
        if line:sub(1, 1) == "{" then
            events[#events + 1] = line
        else
            message = line
        end
    end
    return events, (message:gsub("^longhaul: ", ""))
end

-- Runs a verb of pools or volumes: its exit status, its events, its message.
local function pool_verb(words)
    local status, text = shell(command(for_pools(words)))
    local events, message = events_of(text)
    return status, events, message
end

-- A number of an event; nothing if it is null.
local function number(event, field)
    return tonumber(event:match('"' .. field .. '":(%d+)'))
end

local function is_event(event, name)
    return event:find('{"event":"' .. name .. '"', 1, true) == 1
end

local is_root
-- A command line with the rights of root: slurmctld may run as another user.
local function as_root(line)
    if is_root == nil then
        local _, uid = shell("id -u")
        is_root = uid == "0"
    end
    return is_root and line or settings.sudo .. " " .. line
end

-- A command line with the rights and the environment of a user and no others.
local function as_user(uid, gid, words)
    local set = { "setpriv", "--reuid", uid, "--regid", gid, "--init-groups", "--reset-env", "--" }
    for _, word in ipairs(words) do
        set[#set + 1] = word
    end
    return as_root(join(set))
end

-- Directives ----------------------------------------------------------------------------------------

-- Splits a line into words, as a shell does: quotes and backslashes, and no expansion.
local function words_of(line)
    local words, word, at = {}, nil, 1
    while at <= #line do
        local char = line:sub(at, at)
        if char:match("%s") then
            words[#words + 1], word = word, nil
        elseif char == "'" or char == '"' then
            local to = line:find(char, at + 1, true)
            if not to then
                return nil, "a quotation mark has no partner"
            end
            word = (word or "") .. line:sub(at + 1, to - 1)
            at = to
        elseif char == "\\" then
            at = at + 1
            word = (word or "") .. line:sub(at, at)
        else
            word = (word or "") .. char
        end
        at = at + 1
    end
    words[#words + 1] = word
    return words
end

-- The directives of a script, in order, without their first word: those before the first line that is
-- no comment, as Slurm reads them.
local function lines_of(path)
    local file, why = io.open(path)
    if not file then
        return nil, "the script of the job cannot be read: " .. tostring(why)
    end
    local lines, continued = {}, false
    for line in file:lines() do
        line = line:gsub("\r$", "")
        if line ~= "" and line:sub(1, 1) ~= "#" then
            break
        end
        local rest = line:match("^#" .. DIRECTIVE .. "(.*)$")
        if rest then
            local before = rest:match("^(.*)\\$")
            if continued then
                lines[#lines] = lines[#lines] .. " " .. (before or rest)
            else
                lines[#lines + 1] = before or rest
            end
            continued = before ~= nil
        elseif line ~= "" then
            continued = false
        end
    end
    file:close()
    return lines
end

-- Splits NAME=VALUE words into a table; each name is one of `known` and occurs once.
local function options_of(words, known)
    local options = {}
    for _, word in ipairs(words) do
        local name, value = word:match("^([%w_-]+)=(.*)$")
        if not name then
            return nil, ("'%s' is not of the form NAME=VALUE"):format(word)
        end
        if not known[name] then
            return nil, ("there is no option '%s'"):format(name)
        end
        if options[name] then
            return nil, ("'%s' is given twice"):format(name)
        end
        if value == "" then
            return nil, ("'%s' has no value"):format(name)
        end
        options[name] = value
    end
    return options
end

local function is_one_of(list, name)
    for one in list:gmatch("[^,%s]+") do
        if one == name then
            return true
        end
    end
    return false
end

local function count(text, least, most)
    local value = text:match("^%d+$") and tonumber(text)
    return value and value >= least and value <= most and value or nil
end

-- `pool=scratch capacity=2TiB …`
local function storage_of(words)
    local known = { pool = 1, capacity = 1, layout = 1, fs = 1, width = 1, spares = 1, lifetime = 1, nodes = 1, size = 1 }
    local storage, why = options_of(words, known)
    if not storage then
        return nil, why
    end
    if storage.size then
        return nil, "the size is given as capacity=SIZE, which Slurm counts"
    end
    if not storage.pool or not storage.capacity then
        return nil, "pool=NAME and capacity=SIZE are needed"
    end
    if settings.pools ~= "" and not is_one_of(settings.pools, storage.pool) then
        return nil, ("there is no pool '%s' for jobs: there is %s"):format(storage.pool, settings.pools)
    end
    -- The sizes that Slurm and Longhaul both understand, as the same number of bytes.
    local size = storage.capacity:match("^(%d+)[KMGTP]iB$") or storage.capacity:match("^(%d+)[KMGTP]$")
    if not size or tonumber(size) == 0 then
        return nil, ("capacity=%s is no size such as 500GiB or 2TiB"):format(storage.capacity)
    end
    storage.layout = storage.layout or "parity"
    if not LAYOUTS[storage.layout] then
        local all = "parity, double-parity, mirror, stripe+mirror, stripe"
        return nil, ("layout=%s is none of %s"):format(storage.layout, all)
    end
    storage.fs = storage.fs or "xfs"
    if not FILE_SYSTEMS[storage.fs] then
        return nil, ("fs=%s is neither xfs nor ext4"):format(storage.fs)
    end
    storage.lifetime = storage.lifetime or settings.lifetime
    local time = storage.lifetime:match("^(%d+)[smhd]$") or storage.lifetime:match("^(%d+)min$")
    if not time or tonumber(time) == 0 then
        return nil, ("lifetime=%s is no time such as 8h or 3d"):format(storage.lifetime)
    end
    for name, least in pairs({ width = 1, spares = 0, nodes = 1 }) do
        if storage[name] and not count(storage[name], least, MAX_NODES) then
            return nil, ("%s=%s is no number from %d to %d"):format(name, storage[name], least, MAX_NODES)
        end
    end
    return storage
end

-- A path below the volume's root.
local function is_inside(path)
    return path:sub(1, 1) ~= "/" and not ("/" .. path .. "/"):find("/../", 1, true)
end

-- `stage_in source=… destination=…`, or `stage_out …`
local function stage_of(kind, words)
    local stage, why = options_of(words, { source = 1, destination = 1 })
    if not stage then
        return nil, why
    end
    if not stage.source or not stage.destination then
        return nil, "source= and destination= are needed"
    end
    local inside = kind == "stage_in" and "destination" or "source"
    local outside = kind == "stage_in" and "source" or "destination"
    if not is_inside(stage[inside]) then
        return nil, ("%s=%s has to be a path below the job's directory, without ..")
            :format(inside, stage[inside])
    end
    local far = stage[outside]
    if not (far:match("^/") or far:match("^lh://") or far:match("^[%w@._%-%[%]:]+:")) then
        return nil, ("%s=%s has to be an absolute path, HOST:PATH or lh://HOST/PATH"):format(outside, far)
    end
    stage.inside, stage.outside = stage[inside], far
    return stage
end

-- What a script asks for: { storage =, stage_in = {…}, stage_out = {…} }. Nothing and no reason
-- if it has no directives.
local function request_of(path)
    local lines, why = lines_of(path)
    if not lines then
        return nil, why
    end
    local request = { stage_in = {}, stage_out = {} }
    for _, line in ipairs(lines) do
        local function wrong(reason)
            return nil, ("#%s%s: %s"):format(DIRECTIVE, line, reason)
        end
        if line:match("^%S") then
            return wrong("a space has to follow #" .. DIRECTIVE)
        end
        local words, unpaired = words_of(line)
        if not words then
            return wrong(unpaired)
        end
        local kind = words[1]
        if kind == "stage_in" or kind == "stage_out" then
            table.remove(words, 1)
            local stage, reason = stage_of(kind, words)
            if not stage then
                return wrong(reason)
            end
            table.insert(request[kind], stage)
        else
            local storage, reason = storage_of(words)
            if not storage then
                return wrong(reason)
            end
            if request.storage then
                return wrong("a job has one line with pool= and capacity=")
            end
            request.storage = storage
        end
    end
    if #lines == 0 then
        return nil
    end
    if not request.storage then
        return nil, ("#%s pool=NAME capacity=SIZE is missing"):format(DIRECTIVE)
    end
    return request
end

-- Whether a script has directives: asked by the scripts that replace the plugin.
function longhaul_is_asked(job_script)
    local lines = lines_of(job_script)
    return lines ~= nil and #lines > 0
end

-- Volumes -------------------------------------------------------------------------------------------

-- What a function of the plugin returns for a failure: the message is in the job's reason.
local function failed(what, why)
    local message = ("%s: %s"):format(what, why)
    slurm.log_error("%s", "longhaul: " .. message)
    return slurm.ERROR, message
end

-- POOL/NAME of the volumes of a job: one, or one for each node in their order.
local function volumes_of(job, storage)
    if not storage.nodes then
        return { storage.pool .. "/job-" .. job }
    end
    local volumes = {}
    for rank = 0, tonumber(storage.nodes) - 1 do
        volumes[#volumes + 1] = ("%s/job-%s-r%d"):format(storage.pool, job, rank)
    end
    return volumes
end

-- What a job has: bytes of namespaces, and volumes that are being made or removed.
local function job_status(job, pool)
    local words = { "pool", "jobs" }
    words[#words + 1] = pool
    local _, events = pool_verb(words)
    for _, event in ipairs(events) do
        if is_event(event, "job") and event:find(('"job":"%s"'):format(job), 1, true) then
            return number(event, "bytes") or 0, number(event, "pending") or 0
        end
    end
    return 0, 0
end

local function pause()
    shell("sleep 2")
end

-- Calls `try` until it returns true, or something else than "again" as its reason, or patience ends.
local function persist(try)
    local started = os.time()
    while true do
        local done, why, again = try()
        if done or not again or os.time() - started > PATIENCE then
            return done, why
        end
        pause()
    end
end

-- The user and the group of a job, which Slurm passes on from 23.02 on.
local function user_of(job, uid, gid)
    if uid and gid then
        return uid, gid
    end
    local words = { "squeue", "--noheader", "--states", "all", "--jobs", job, "--format", "%U %G" }
    local _, text = shell(join(words))
    return text:match("^(%d+) +(%d+)$")
end

-- Mounts a volume on this host, calls `work` with its directory and the job's user and group, and unmounts it.
local function with_mounted(job, volume, uid, gid, work)
    uid, gid = user_of(job, uid, gid)
    if not uid then
        return nil, "the user of the job is not known: squeue says nothing"
    end
    local dir = settings.staging .. "/" .. job
    local status, text = shell(as_root(join({ "mkdir", "-p", "-m", "0711", settings.staging, dir })))
    if status ~= 0 then
        return nil, text
    end
    local opened, _, message = pool_verb({ "volume", "open", volume })
    if opened ~= 0 and opened ~= 3 then
        return nil, message
    end
    local words = { "mount", "volume:" .. volume, dir, "-o", "nosuid,nodev" }
    if settings.hostnqn ~= "" then
        words[#words + 1] = "--hostnqn"
        words[#words + 1] = settings.hostnqn
    end
    -- It is refused while the node has the volume, or a node that was lost seems to.
    local mounted, why = persist(function()
        local code, said = shell(as_root(command(words)))
        local _, reason = events_of(said)
        return code == 0, reason, code == 6
    end)
    if not mounted then
        return nil, why
    end
    local done, reason
    local code, said = shell(as_root(join({ "chown", uid .. ":" .. gid, dir }))
        .. " && " .. as_root(join({ "chmod", "0700", dir })))
    if code ~= 0 then
        done, reason = nil, said
    else
        done, reason = work(dir, uid, gid)
    end
    local ended, end_said = shell(as_root(command({ "umount", dir })))
    if ended ~= 0 then
        return nil, select(2, events_of(end_said))
    end
    shell(as_root(join({ "rmdir", dir })))
    return done, reason
end

-- Copies as the user: true, or nothing and the message.
local function copy(uid, gid, source, destination)
    local words = { settings.program, "cp", "-r", "--", source, destination }
    local status, text = shell(as_user(uid, gid, words))
    if status ~= 0 then
        local _, message = events_of(text)
        return nil, ("%s to %s: %s"):format(source, destination, message)
    end
    return true
end

-- The nodes of a job, in the order of its list.
local function nodes_of(job)
    local list = os.getenv("SLURM_JOB_ID") == job and os.getenv("SLURM_JOB_NODELIST")
    if not list then
        local status, text = shell(join({ "squeue", "--noheader", "--jobs", job, "--format", "%N" }))
        list = status == 0 and text:match("%S+")
        if not list then
            return nil, "its nodes are not known: " .. text
        end
    end
    local status, text = shell(join({ "scontrol", "show", "hostnames", list }))
    if status ~= 0 then
        return nil, text
    end
    local nodes = {}
    for node in text:gmatch("%S+") do
        nodes[#nodes + 1] = node
    end
    return nodes
end

-- Functions of the plugin ---------------------------------------------------------------------------

-- At submission: refuses directives that cannot be carried out.
function slurm_bb_job_process(job_script, uid, gid)
    local _, why = request_of(job_script)
    if why then
        return slurm.ERROR, why
    end
    return slurm.SUCCESS
end

-- Capacity of the pools, in MiB. A pool that cannot be asked has none free: jobs wait. An error would
-- make Slurm forget the allocations that it knew before it was restarted.
function slurm_bb_pools()
    local names = settings.pools
    if names == "" then
        local _, events = pool_verb({ "pool", "ls" })
        for _, event in ipairs(events) do
            names = names .. "," .. (is_event(event, "pool") and event:match('"name":"([^"]*)"') or "")
        end
    end
    local pools = {}
    for name in names:gmatch("[^,%s]+") do
        local words = for_pools({ "pool", "status", name, "--connect-timeout", "3s" })
        local status, text = shell("timeout 20 " .. command(words))
        local events, message = events_of(text)
        local free, capacity = 0, 0
        for _, event in ipairs(events) do
            if is_event(event, "target") then
                local left = number(event, "capacity") - number(event, "used")
                free = free + math.max(0, math.min(number(event, "free") or 0, left))
            elseif is_event(event, "summary") then
                capacity = number(event, "capacity")
                local quota = number(event, "quota")
                if quota and quota < capacity then
                    capacity = quota
                    free = math.max(0, math.min(free, quota - number(event, "used")))
                end
            end
        end
        if status ~= 0 and status ~= 3 then
            slurm.log_error("%s", ("longhaul: pool %s: %s"):format(name, message))
        end
        pools[#pools + 1] = ('{"id":"%s","quantity":%.0f,"free":%.0f,"granularity":%d}')
            :format(name, math.floor(capacity / MIB), math.floor(free / MIB), MIB)
    end
    if #pools == 0 then
        slurm.log_error("%s", "longhaul: no pool is known on this host: longhaul pool status POOL --catalog CATALOG")
        return slurm.SUCCESS
    end
    return slurm.SUCCESS, '{"pools":[' .. table.concat(pools, ",") .. "]}"
end

-- Makes the volumes: all of them or none.
function slurm_bb_setup(job_id, uid, gid, pool, bb_size, job_script)
    local request, why = request_of(job_script)
    if not request then
        return failed("job " .. job_id, why or "its script has no directives any more")
    end
    local storage = request.storage
    local words = {
        "pool", "allocate", storage.pool, "--size", storage.capacity, "--layout", storage.layout,
        "--fs", storage.fs, "--lifetime", storage.lifetime, "--for-job", job_id,
    }
    for _, name in ipairs({ "width", "spares" }) do
        if storage[name] then
            words[#words + 1] = "--" .. name
            words[#words + 1] = storage[name]
        end
    end
    if storage.nodes then
        for _, word in ipairs({ "--nodes", ("r[0-%d]"):format(storage.nodes - 1), "--node-nqn", RANK_NQN }) do
            words[#words + 1] = word
        end
    end
    local made, reason = persist(function()
        local _, before = job_status(job_id, storage.pool)
        local status, _, message = pool_verb(words)
        if status == 0 then
            return true
        end
        -- A setup that was cut off is undone by another host once its lease has run out. That may have
        -- ended just now, so that what was in the way is not there any more.
        local _, pending = job_status(job_id, storage.pool)
        return nil, message, before > 0 or pending > 0
    end)
    if not made then
        return failed("storage of job " .. job_id .. " is not made", reason)
    end
    return slurm.SUCCESS
end

-- Copies what a directive of the job names into or out of each of its volumes, as the user.
-- `copy_stage(dir, stage, storage, index, uid, gid)` copies one of them: true, or nil and the reason.
local function stage_all(job_id, job_script, directive, uid, gid, copy_stage)
    local request, why = request_of(job_script)
    if not request then
        return failed("job " .. job_id, why or "its script has no directives any more")
    end
    local stages = request[directive]
    if #stages == 0 then
        return slurm.SUCCESS
    end
    for index, volume in ipairs(volumes_of(job_id, request.storage)) do
        local done, reason = with_mounted(job_id, volume, uid, gid, function(dir, uid, gid)
            for _, stage in ipairs(stages) do
                local copied, message = copy_stage(dir, stage, request.storage, index, uid, gid)
                if not copied then
                    return nil, message
                end
            end
            return true
        end)
        if not done then
            return failed(directive .. " of job " .. job_id, reason)
        end
    end
    return slurm.SUCCESS
end

local function copy_in(dir, stage, _, _, uid, gid)
    local to = dir .. "/" .. stage.inside
    local parent = to:match("^(.*)/[^/]*$")
    local status, text = shell(as_user(uid, gid, { "mkdir", "-p", "--", parent }))
    if status ~= 0 then
        return nil, text
    end
    return copy(uid, gid, stage.outside, to)
end

local function copy_out(dir, stage, storage, index, uid, gid)
    local from, to = dir .. "/" .. stage.inside, stage.outside
    if storage.nodes then
        to = to:gsub("/+$", "") .. "/" .. (index - 1)
        if to:match("^/") then
            shell(as_user(uid, gid, { "mkdir", "-p", "--", stage.outside }))
        end
    end
    local is_there = as_user(uid, gid, { "test", "-e", from })
    if shell(is_there) ~= 0 then
        -- Nothing can be lost that was not written.
        slurm.log_info("%s", ("longhaul: the job wrote no %s for %s"):format(stage.inside, stage.outside))
        return true
    end
    return copy(uid, gid, from, to)
end

-- Copies what `stage_in` names into each volume.
function slurm_bb_data_in(job_id, job_script, uid, gid)
    return stage_all(job_id, job_script, "stage_in", uid, gid, copy_in)
end

-- The bytes that the job takes of its pool, parity and spares included.
function slurm_bb_real_size(job_id, uid, gid)
    local bytes = job_status(job_id)
    if bytes == 0 then
        return slurm.SUCCESS
    end
    return slurm.SUCCESS, ("%.0f"):format(bytes)
end

-- Tells the job where its storage is.
function slurm_bb_paths(job_id, job_script, path_file, uid, gid)
    local file, why = io.open(path_file, "w")
    if not file then
        return failed("job " .. job_id, why)
    end
    file:write("LONGHAUL_DIR=", settings.mounts, "/", job_id, "\n")
    file:close()
    return slurm.SUCCESS
end

-- Leaves each volume to its node, and to no other host. The node's prolog mounts it.
function slurm_bb_pre_run(job_id, job_script, uid, gid)
    local request, why = request_of(job_script)
    if not request then
        return failed("job " .. job_id, why or "its script has no directives any more")
    end
    local nodes, unknown = nodes_of(job_id)
    if not nodes then
        return failed("job " .. job_id, unknown)
    end
    local volumes = volumes_of(job_id, request.storage)
    if request.storage.nodes and #nodes > #volumes then
        return failed("job " .. job_id, ("it has %d nodes and nodes=%d"):format(#nodes, #volumes))
    end
    for rank, volume in ipairs(volumes) do
        if nodes[rank] then
            local nqn = settings.node_nqn:gsub("{}", function() return nodes[rank] end)
            local status, _, message = pool_verb({ "volume", "open", volume, "--for", nqn, "--only" })
            -- 3: a target cannot be reached, and the volume does without it.
            if status ~= 0 and status ~= 3 then
                return failed("volume " .. volume .. " for node " .. nodes[rank], message)
            end
        end
    end
    return slurm.SUCCESS
end

function slurm_bb_post_run(job_id, job_script, uid, gid)
    return slurm.SUCCESS
end

-- Copies what `stage_out` names. If that fails, the volumes stay, and the job says why.
function slurm_bb_data_out(job_id, job_script, uid, gid)
    return stage_all(job_id, job_script, "stage_out", uid, gid, copy_out)
end

-- Removes all that the job has, however far it got, and does nothing the second time.
function slurm_bb_job_teardown(job_id, job_script, hurry, uid, gid)
    local dir = settings.staging .. "/" .. job_id
    if shell(join({ "test", "-e", dir })) == 0 then
        if shell(join({ "mountpoint", "-q", dir })) == 0 then
            shell(as_root(command({ "umount", "--lazy", dir })))
        end
        shell(as_root(join({ "rmdir", dir })))
    end
    local words = { "pool", "release" }
    -- The script may be gone, or be of a job that was refused: then every pool is asked.
    local request = request_of(job_script)
    local names = request and request.storage.pool or settings.pools
    for name in names:gmatch("[^,%s]+") do
        words[#words + 1] = name
    end
    words[#words + 1] = "--for-job"
    words[#words + 1] = job_id
    local status, _, message = pool_verb(words)
    if status == 3 then
        -- The catalog remembers it: slurm_bb_pools, which Slurm calls again and again, finishes it.
        slurm.log_info("%s", "longhaul: " .. message)
    elseif status ~= 0 then
        return failed("storage of job " .. job_id .. " is not released", message)
    end
    return slurm.SUCCESS
end

-- `scontrol show bbstat`: what jobs have.
function slurm_bb_get_status(uid, gid, ...)
    local words = { "pool", "jobs" }
    for name in settings.pools:gmatch("[^,%s]+") do
        words[#words + 1] = name
    end
    if settings.catalog ~= "" then
        words[#words + 1] = "--catalog"
        words[#words + 1] = settings.catalog
    end
    local status, text = shell(command(words))
    return slurm.SUCCESS, text .. "\n"
end

-- Slurm 22.05 lets a job wait for ever whose function ends with an error of Lua, and takes a second
-- result for an error that is not text.
for name, call in pairs(_G) do
    if type(name) == "string" and name:find("^slurm_bb_") then
        _G[name] = function(...)
            local is_done, status, message = pcall(call, ...)
            if not is_done then
                status, message = failed(name, tostring(status))
            end
            if message == nil then
                return status
            end
            return status, message
        end
    end
end
