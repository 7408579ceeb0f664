-- Calls one function of burst_buffer.lua as Slurm does, with a table `slurm` as Slurm's plugin makes it:
-- lua slurm.lua burst_buffer.lua FUNCTION ARGUMENT... Prints its status, and then its message.

local function log(format, ...)
    io.stderr:write(string.format(format, ...), "\n")
end
slurm = { SUCCESS = 0, ERROR = -1, log_info = log, log_error = log }
dofile(arg[1])
local unpack = table.unpack or unpack
local arguments = {}
for index = 3, #arg do
    arguments[#arguments + 1] = arg[index]
end
-- Slurm takes a second result that is not text for an error.
local function print_results(status, ...)
    assert(type(status) == "number", "a status is a number")
    assert(select("#", ...) == 0 or type((...)) == "string", "a message is text")
    io.write(string.format("%d", status), "\n", (...) or "", "\n")
end
print_results(_G[arg[2]](unpack(arguments)))
