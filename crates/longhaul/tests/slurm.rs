//! Storage for jobs of Slurm, `contrib/slurm`: its Lua under a real Lua, its scripts for nodes, and all of
//! it under a real slurmctld and slurmd.

mod common;

use common::site::{ADMIN, Site};
use common::{PATIENCE, PROGRAM, Ran, Running, finish, has_ended, mounts_below, text, until};
use serde_json::json;
use std::fs;
use std::net::TcpListener;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

const CONTRIB: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../contrib/slurm");
const CALL: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/slurm.lua");
/// The user of the jobs, who is no administrator: Slurm gives none to root.
const USER: &str = "65534";
/// A name that a shell would read in six ways.
const ODD: &str = "a b'c\"d;touch injected;$(touch injected)`touch injected`&|<>*";
const SUCCESS: &str = "0";
const ERROR: &str = "-1";

/// The first interpreter of Lua that this machine has; none, with the reason on standard error.
fn lua() -> Option<&'static str> {
    let found = ["lua5.3", "lua5.4", "lua"].into_iter().find(|lua| is_installed(lua, "-v"));
    if found.is_none() {
        longhaul_skip::skip!("lua5.3 is not installed");
    }
    found
}

/// Whether a program starts. Some have no configuration here, and say so.
fn is_installed(program: &str, version: &str) -> bool {
    Command::new(program).arg(version).stdout(Stdio::null()).stderr(Stdio::null()).status().is_ok()
}

/// Whether this machine can mount; the reason on standard error if not.
fn can_mount() -> bool {
    if !rustix::process::geteuid().is_root() {
        longhaul_skip::skip!("mounting needs root");
        return false;
    }
    if !longhaul_skip::can_open(&["/dev/fuse", "/dev/loop-control"]) {
        return false;
    }
    for program in ["mkfs.ext4", "setpriv", "mountpoint"] {
        if !is_installed(program, "-V") {
            longhaul_skip::skip!("{program} is not installed");
            return false;
        }
    }
    true
}

/// A host with slurmctld and a node at once, and targets.
struct Cluster {
    site: Site,
    lua: &'static str,
}

impl Cluster {
    /// With the pool `p` of so many targets.
    fn new(targets: usize) -> Option<Cluster> {
        let cluster = Cluster { lua: lua()?, site: Site::new(targets) };
        let dir = cluster.site.directory.path();
        fs::set_permissions(dir, fs::Permissions::from_mode(0o755)).expect("set");
        // Where jobs cannot reach the program, they use a copy of it.
        let program = dir.join("longhaul");
        fs::copy(PROGRAM, &program).expect("copied");
        for entry in fs::read_dir(CONTRIB).expect("readable") {
            let entry = entry.expect("readable");
            fs::copy(entry.path(), dir.join(entry.file_name())).expect("copied");
        }
        fs::create_dir_all(cluster.site.path("host")).expect("made");
        let state = text(&cluster.site.path("host")).to_owned();
        let settings = format!(
            "# A comment.\nprogram={}\npools=p\nmounts={dir}/mnt\nstaging={dir}/staging\nhostnqn={ADMIN}\n\
             lifetime=1d\nwait=30\nenv.XDG_STATE_HOME={state}\nenv.XDG_RUNTIME_DIR={state}\n\
             env.XDG_CONFIG_HOME=/nonexistent\n",
            text(&program),
            dir = text(dir)
        );
        fs::write(dir.join("longhaul.conf"), settings).expect("written");
        if targets > 0 {
            cluster.site.create();
        }
        Some(cluster)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.site.path(name)
    }

    /// The script of a job with these directives.
    fn script(&self, lines: &[&str]) -> String {
        let path = self.path("script");
        fs::write(&path, format!("#!/bin/sh\n#SBATCH -N 1\n{}\ntrue\n", lines.join("\n"))).expect("written");
        text(&path).to_owned()
    }

    /// Calls a function as the plugin does: its status and its message.
    fn call(&self, function: &str, args: &[&str]) -> (String, String) {
        let mut lua = self.lua(&[&[CALL, text(&self.path("burst_buffer.lua")), function], args].concat());
        lua.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let ran = finish(lua.spawn().expect("started"));
        assert_eq!(ran.code, Some(0), "{function}: {ran:?}");
        let (status, message) = ran.stdout.split_once('\n').expect("two lines");
        (status.to_owned(), message.trim_end().to_owned())
    }

    fn lua(&self, args: &[&str]) -> Command {
        let mut lua = Command::new(self.lua);
        // Programs of Slurm are those of the test, if it has made some.
        let path = format!("{}:{}", text(&self.path("bin")), std::env::var("PATH").unwrap_or_default());
        lua.args(args).current_dir(self.site.directory.path()).env("PATH", path);
        lua
    }

    /// Calls a function that succeeds, and returns its message.
    fn good(&self, function: &str, args: &[&str]) -> String {
        let (status, message) = self.call(function, args);
        assert_eq!(status, SUCCESS, "{function} {args:?}: {message}");
        message
    }

    fn setup(&self, job: &str, script: &str) -> (String, String) {
        self.call("slurm_bb_setup", &[job, USER, USER, "p", "0", script])
    }

    fn teardown(&self, job: &str, script: &str) {
        self.good("slurm_bb_job_teardown", &[job, script, "false", USER, USER]);
    }

    /// Runs a script of the node `n1`.
    fn node(&self, script: &str, job: &str) -> Ran {
        let mut script = Command::new(self.path(script));
        script.env_clear().env("SLURM_JOB_ID", job).env("SLURMD_NODENAME", "n1");
        script.env("SLURM_JOB_UID", USER).env("SLURM_JOB_GID", USER);
        script.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        finish(script.spawn().expect("started"))
    }

    /// A program of Slurm that the scripts call.
    fn stand_in(&self, name: &str, script: &str) {
        let path = self.path("bin").join(name);
        fs::create_dir_all(self.path("bin")).expect("made");
        fs::write(&path, format!("#!/bin/sh\n{script}\n")).expect("written");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).expect("set");
    }

    /// A directory that belongs to the user of jobs.
    fn users(&self, name: &str) -> PathBuf {
        let path = self.path(name);
        fs::create_dir_all(&path).expect("made");
        let id = USER.parse().ok();
        chown(&path, id, id).expect("root");
        path
    }

    /// Nothing of any job is left: records, namespaces, mounts, files.
    fn is_clean(&self) {
        assert_eq!(self.site.files(), 0, "namespaces");
        let status = self.site.last(&["pool", "status", "p"]);
        let counts = (&status["volumes"], &status["used"], &status["pending"], &status["waiting"]);
        assert_eq!(counts, (&json!(0), &json!(0), &json!([]), &json!([])), "{status}");
        assert_eq!(self.site.last(&["pool", "jobs"])["jobs"], 0);
        assert_eq!(mounts_below(self.site.directory.path()), Vec::<String>::new());
        for dir in ["mnt", "staging"] {
            let left = fs::read_dir(self.path(dir)).map_or(0, Iterator::count);
            assert_eq!(left, 0, "{dir}");
        }
        assert!(!self.path("injected").exists(), "a name was executed");
    }
}

const STORAGE: &str = "#LONGHAUL pool=p capacity=48MiB fs=ext4 width=3";

#[test]
fn directives_are_judged_at_submission() {
    let Some(cluster) = Cluster::new(0) else { return };
    let judge = |lines: &[&str]| cluster.call("slurm_bb_job_process", &[&cluster.script(lines), "1", "1"]);
    for good in [
        &[][..],
        &["#SBATCH -n 1"],
        &[STORAGE],
        &["#LONGHAUL pool=p capacity=2T layout=double-parity lifetime=8h spares=0 nodes=8"],
        // As Slurm reads them: a directive goes on in the next one.
        &["#LONGHAUL pool=p \\", "#LONGHAUL capacity=1GiB \\", "#LONGHAUL layout=mirror"],
        &[STORAGE, "", "#LONGHAUL stage_in source='/a b/c' destination=\"d e\""],
        &[
            STORAGE,
            "#LONGHAUL stage_in source=me@dtn1:data destination=.",
            "#LONGHAUL stage_out source=a/b destination=lh://dtn1/x",
        ],
        // What follows the first command is no directive.
        &["true", "#LONGHAUL nonsense"],
    ] {
        assert_eq!(judge(good), (SUCCESS.to_owned(), String::new()), "{good:?}");
    }
    for (bad, why) in [
        (&["#LONGHAUL"][..], "pool=NAME and capacity=SIZE are needed"),
        (&["#LONGHAUL pool=p size=1TiB"], "given as capacity=SIZE"),
        (&["#LONGHAUL pool=q capacity=1TiB"], "there is no pool 'q' for jobs: there is p"),
        (&["#LONGHAUL pool=p capacity=lots"], "capacity=lots is no size"),
        (&["#LONGHAUL pool=p capacity=0GiB"], "capacity=0GiB is no size"),
        (&["#LONGHAUL pool=p capacity=1"], "capacity=1 is no size"),
        (&["#LONGHAUL pool=p capacity=1TiB layout=raid5"], "layout=raid5 is none of parity"),
        // Two hosts could write to it.
        (&["#LONGHAUL pool=p capacity=1TiB layout=single"], "layout=single is none of"),
        (&["#LONGHAUL pool=p capacity=1TiB fs=zfs"], "fs=zfs is neither"),
        (&["#LONGHAUL pool=p capacity=1TiB lifetime=0h"], "lifetime=0h is no time"),
        (&["#LONGHAUL pool=p capacity=1TiB lifetime=long"], "lifetime=long is no time"),
        (&["#LONGHAUL pool=p capacity=1TiB nodes=0"], "nodes=0 is no number"),
        (&["#LONGHAUL pool=p capacity=1TiB width=x"], "width=x is no number"),
        (&["#LONGHAUL pool=p capacity=1TiB colour=red"], "there is no option 'colour'"),
        (&["#LONGHAUL pool=p capacity=1TiB pool=p"], "'pool' is given twice"),
        (&["#LONGHAUL pool=p capacity=1TiB fs="], "'fs' has no value"),
        (&["#LONGHAUL pool=p capacity=1TiB fast"], "'fast' is not of the form"),
        (&["#LONGHAULpool=p capacity=1TiB"], "a space has to follow"),
        (&[STORAGE, STORAGE], "one line with pool="),
        (&["#LONGHAUL stage_in source=/a destination=b"], "pool=NAME capacity=SIZE is missing"),
        (&[STORAGE, "#LONGHAUL stage_in source=/a"], "source= and destination= are needed"),
        (&[STORAGE, "#LONGHAUL stage_in source=a destination=b"], "has to be an absolute path"),
        (&[STORAGE, "#LONGHAUL stage_in source=/a destination=/b"], "below the job's directory"),
        (&[STORAGE, "#LONGHAUL stage_in source=/a destination=b/../../etc"], "below the job's directory"),
        (&[STORAGE, "#LONGHAUL stage_out source=../b destination=/c"], "below the job's directory"),
        (&[STORAGE, "#LONGHAUL stage_out source=b destination=-c"], "has to be an absolute path"),
        (&[STORAGE, "#LONGHAUL stage_in source='/a destination=b"], "no partner"),
    ] {
        let (status, message) = judge(bad);
        assert!(status == ERROR && message.contains(why), "{bad:?}: {message}");
        assert!(message.contains('#'), "it shows the line: {message}");
    }
    let (status, message) = cluster.call("slurm_bb_job_process", &["/nonexistent", "1", "1"]);
    assert!(status == ERROR && message.contains("cannot be read"), "{message}");
    assert!(!cluster.path("injected").exists());
}

#[test]
fn a_job_gets_its_data_in_and_its_results_out() {
    if !can_mount() {
        return;
    }
    let Some(cluster) = Cluster::new(3) else { return };
    let home = cluster.users("home");
    let input = home.join(ODD);
    fs::create_dir(&input).expect("made");
    fs::write(input.join("data"), "input").expect("written");
    fs::write(cluster.path("secret"), "root's").expect("written");
    fs::set_permissions(cluster.path("secret"), fs::Permissions::from_mode(0o600)).expect("set");
    // A word of a shell that is quoted by backslashes, as a job's script has it.
    let quoted = |path: &Path| text(path).chars().map(|c| format!("\\{c}")).collect::<String>();
    let results = home.join(format!("results {ODD}"));
    let script = cluster.script(&[
        STORAGE,
        &format!("#LONGHAUL stage_in source={} destination='in put/x'", quoted(&input)),
        &format!("#LONGHAUL stage_out source=out destination={}", quoted(&results)),
        &format!("#LONGHAUL stage_out source=never destination={}", quoted(&home.join("never"))),
    ]);
    cluster.stand_in(
        "squeue",
        &format!(
            "case \"$*\" in '--noheader --jobs 7 --format %N') echo 'n[1-2]' ;; \
             '--noheader --states all --jobs 7 --format %U %G') echo '{USER} {USER}' ;; *) exit 1 ;; esac"
        ),
    );
    cluster.stand_in("scontrol", "[ \"$*\" = 'show hostnames n[1-2]' ] && printf 'n1\\nn2\\n'");
    let job = "7";
    cluster.good("slurm_bb_job_process", &[&script, USER, USER]);
    let capacity = |text: &str, field: &str| {
        let value: serde_json::Value = serde_json::from_str(text).expect("JSON");
        value["pools"][0][field].as_u64().expect("a number")
    };
    let before = cluster.good("slurm_bb_pools", &[]);
    assert_eq!((capacity(&before, "quantity"), capacity(&before, "granularity")), (768, 1 << 20));
    assert_eq!(cluster.setup(job, &script), (SUCCESS.to_owned(), String::new()));
    let real: u64 = cluster.good("slurm_bb_real_size", &[job, USER, USER]).parse().expect("bytes");
    assert!(real >= 72 << 20, "the parity counts: {real}");
    let free = capacity(&cluster.good("slurm_bb_pools", &[]), "free");
    assert!(free <= capacity(&before, "free") - (real >> 20), "{free}");
    // A second setup finds the job's volume, and does not touch it.
    let (status, message) = cluster.setup(job, &script);
    assert!(status == ERROR && message.contains("already"), "{message}");

    // The node waits until the volume is its own.
    let waits = {
        let mut prolog = Command::new(cluster.path("prolog"));
        prolog.env_clear().env("SLURM_JOB_ID", job).env("SLURMD_NODENAME", "n1");
        prolog.env("SLURM_JOB_UID", USER).env("SLURM_JOB_GID", USER);
        prolog.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        prolog.spawn().expect("started")
    };
    let data_in = cluster.call("slurm_bb_data_in", &[job, &script, USER, USER]);
    assert_eq!(data_in, (SUCCESS.to_owned(), String::new()));
    let paths = cluster.path("paths");
    cluster.good("slurm_bb_paths", &[job, &script, text(&paths), USER, USER]);
    let dir = cluster.path("mnt").join(job);
    assert_eq!(fs::read_to_string(paths).expect("read"), format!("LONGHAUL_DIR={}\n", dir.display()));
    cluster.good("slurm_bb_pre_run", &[job, &script, USER, USER]);
    let ran = finish(waits);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    assert_eq!(fs::read_to_string(dir.join("in put/x/data")).expect("staged in"), "input");
    // Another node of the job has no volume, and a job without storage neither.
    let mut other = Command::new(cluster.path("prolog"));
    other.env_clear().env("SLURM_JOB_ID", job).env("SLURMD_NODENAME", "n2").env("SLURM_JOB_UID", USER);
    assert!(other.status().expect("ran").success());
    assert_eq!(cluster.node("prolog", "8").code, Some(0));
    assert_eq!(mounts_below(&cluster.path("mnt")).len(), 1);

    let wrote = Command::new("setpriv")
        .args(["--reuid", USER, "--regid", USER, "--clear-groups", "sh", "-c"])
        .arg("cd \"$0\" && mkdir out && cp 'in put/x/data' out/result && ln -s ../../../secret out/link")
        .arg(&dir)
        .status();
    assert!(wrote.expect("ran").success(), "the user may write there");
    // The controller does not take the volume from the node: it waits until the node has unmounted it.
    // Slurm 22.05 does not say whose job it is.
    let mut out =
        cluster.lua(&[CALL, text(&cluster.path("burst_buffer.lua")), "slurm_bb_data_out", job, &script]);
    let out = out.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("started");
    let listed = || cluster.site.last(&["volume", "info", "p/job-7"])["hosts"].clone();
    until("the controller to ask", || listed().as_array().is_some_and(|hosts| hosts.len() == 2));
    assert_eq!(cluster.node("epilog", job).code, Some(0));
    assert_eq!(cluster.node("epilog", job).code, Some(0), "it does nothing the second time");
    let ran = finish(out);
    assert!(ran.stdout.starts_with("0\n"), "{ran:?}");
    assert!(ran.stderr.contains("wrote no never"), "{ran:?}");
    assert_eq!(fs::read_to_string(results.join("result")).expect("staged out"), "input");
    assert!(results.join("link").is_symlink(), "a link is copied and not followed");
    let status = cluster.good("slurm_bb_get_status", &["0", "0"]);
    assert!(status.contains("job-7") || status.contains('7'), "{status}");
    for _ in 0..2 {
        cluster.teardown(job, &script);
        cluster.is_clean();
    }
    assert_eq!(cluster.good("slurm_bb_real_size", &[job, USER, USER]), "");
}

#[test]
fn a_job_reads_and_writes_as_its_user_only() {
    if !can_mount() {
        return;
    }
    let Some(cluster) = Cluster::new(3) else { return };
    let secret = cluster.path("secret");
    fs::write(&secret, "root's").expect("written");
    fs::set_permissions(&secret, fs::Permissions::from_mode(0o600)).expect("set");
    let script = cluster.script(&[
        STORAGE,
        &format!("#LONGHAUL stage_in source={} destination=x", text(&secret)),
        &format!("#LONGHAUL stage_out source=lost+found destination={}", text(&cluster.path("written"))),
    ]);
    assert_eq!(cluster.setup("7", &script).0, SUCCESS);
    let (status, message) = cluster.call("slurm_bb_data_in", &["7", &script, USER, USER]);
    assert!(status == ERROR && message.contains("secret"), "{message}");
    let (status, message) = cluster.call("slurm_bb_data_out", &["7", &script, USER, USER]);
    assert!(status == ERROR && message.contains("lost+found"), "{message}");
    assert!(!cluster.path("written").exists());
    // What could not be staged out stays until the teardown.
    assert_eq!(cluster.site.last(&["volume", "ls", "p"])["volumes"], 1);
    cluster.teardown("7", &script);
    cluster.is_clean();
}

#[test]
fn a_full_pool_and_lost_targets_leave_nothing() {
    let Some(mut cluster) = Cluster::new(3) else { return };
    let script = cluster.script(&["#LONGHAUL pool=p capacity=4GiB fs=ext4"]);
    let (status, message) = cluster.setup("1", &script);
    assert!(status == ERROR && message.contains("ask for fewer"), "{message}");
    cluster.teardown("1", &script);
    cluster.is_clean();

    // A setup is killed in the middle. The teardown and the next setup are those of a restarted slurmctld.
    let script = cluster.script(&["#LONGHAUL pool=p capacity=48MiB fs=ext4 nodes=2"]);
    let args = ["slurm_bb_setup", "2", USER, USER, "p", "0", &script];
    let burst_buffer = cluster.path("burst_buffer.lua");
    let mut setup = cluster.lua(&[&[CALL, text(&burst_buffer)], &args[..]].concat());
    // A group of its own: Slurm kills the shell and the program with it.
    std::os::unix::process::CommandExt::process_group(&mut setup, 0);
    let mut setup = Running(setup.stdout(Stdio::null()).spawn().expect("started"));
    until("a namespace to be made", || cluster.site.files() > 0);
    let group = format!("-{}", setup.id());
    assert!(Command::new("kill").args(["-KILL", "--", &group]).status().expect("kill").success());
    setup.end(PATIENCE).expect("killed");
    cluster.teardown("2", &script);
    assert_eq!(cluster.setup("2", &script), (SUCCESS.to_owned(), String::new()));
    assert_eq!(cluster.site.last(&["volume", "ls", "p"])["volumes"], 2);

    // A target is gone at the teardown; Slurm's next question for the capacity finishes it.
    let at = cluster.site.kill(1);
    cluster.teardown("2", &script);
    assert!(cluster.site.files() > 0);
    cluster.teardown("2", &script);
    cluster.good("slurm_bb_pools", &[]);
    cluster.site.restart(1, &at);
    cluster.good("slurm_bb_pools", &[]);
    cluster.is_clean();
    // A teardown without the script, as of a job that Slurm has forgotten.
    cluster.teardown("3", "/nonexistent");

    // Without its catalog a pool has nothing free, which is no error: Slurm would forget its jobs.
    fs::rename(cluster.path("host"), cluster.path("away")).expect("moved");
    fs::create_dir(cluster.path("host")).expect("made");
    let pools = cluster.good("slurm_bb_pools", &[]);
    assert!(pools.contains(r#""id":"p","quantity":0,"free":0"#), "{pools}");
    let (status, message) = cluster.setup("4", &script);
    assert!(status == ERROR && message.contains("no pool p is known"), "{message}");
}

#[test]
fn sites_without_burst_buffers_use_prolog_and_epilog() {
    if !can_mount() {
        return;
    }
    let Some(cluster) = Cluster::new(3) else { return };
    let home = cluster.users("home");
    fs::write(home.join("data"), "input").expect("written");
    let script = cluster.script(&[
        STORAGE,
        &format!("#LONGHAUL stage_in source={}/data destination=data", text(&home)),
        &format!("#LONGHAUL stage_out source=data destination={}/result", text(&home)),
    ]);
    cluster.stand_in(
        "scontrol",
        &format!(
            "case \"$*\" in 'write batch_script 7 -') cat {script} ;; 'show hostnames n1') echo n1 ;; \
             *) exit 1 ;; esac"
        ),
    );
    cluster.stand_in("scancel", &format!("echo \"$*\" >> {}", text(&cluster.path("cancelled"))));
    let controller = |name: &str, job: &str| {
        let mut script = cluster.lua(&[text(&cluster.path(name))]);
        script.env("SLURM_JOB_ID", job).env("SLURM_JOB_UID", USER).env("SLURM_JOB_GID", USER);
        script.env("SLURM_JOB_NODELIST", "n1").stdout(Stdio::piped()).stderr(Stdio::piped());
        finish(script.spawn().expect("started"))
    };
    let ran = controller("slurmctld-prolog", "7");
    assert_eq!(ran.code, Some(0), "{ran:?}");
    assert_eq!(cluster.node("prolog", "7").code, Some(0));
    assert_eq!(fs::read_to_string(cluster.path("mnt/7/data")).expect("staged in"), "input");
    assert_eq!(cluster.node("epilog", "7").code, Some(0));
    let ran = controller("slurmctld-epilog", "7");
    assert_eq!(ran.code, Some(0), "{ran:?}");
    assert_eq!(fs::read_to_string(home.join("result")).expect("staged out"), "input");
    cluster.is_clean();
    // A job without a script, as salloc makes it.
    assert_eq!(controller("slurmctld-prolog", "8").code, Some(0));
    // What can never be carried out is cancelled, what may be later is put back.
    cluster.script(&["#LONGHAUL pool=p capacity=many"]);
    let ran = controller("slurmctld-prolog", "7");
    assert!(ran.code == Some(1) && ran.stderr.contains("capacity=many is no size"), "{ran:?}");
    assert_eq!(fs::read_to_string(cluster.path("cancelled")).expect("cancelled"), "7\n");
    cluster.script(&["#LONGHAUL pool=p capacity=4GiB"]);
    let ran = controller("slurmctld-prolog", "7");
    assert!(ran.code == Some(1) && ran.stderr.contains("ask for fewer"), "{ran:?}");
    assert_eq!(fs::read_to_string(cluster.path("cancelled")).expect("cancelled"), "7\n");
    cluster.is_clean();
}

/// munged, slurmctld and slurmd of one node, on ports of their own.
struct Slurm {
    processes: Vec<Running>,
    conf: PathBuf,
}

impl Slurm {
    /// `None`, with the reason on standard error, where Slurm is not installed or does not start.
    fn start(cluster: &Cluster) -> Option<Slurm> {
        for (program, version) in
            [("slurmctld", "-V"), ("slurmd", "-V"), ("sbatch", "-V"), ("munged", "--version")]
        {
            if !is_installed(program, version) {
                longhaul_skip::skip!("{program} is not installed");
                return None;
            }
        }
        let plugins = [
            "/usr/lib/x86_64-linux-gnu/slurm-wlm",
            "/usr/lib/aarch64-linux-gnu/slurm-wlm",
            "/usr/lib64/slurm",
        ];
        if !plugins.iter().any(|dir| Path::new(dir).join("burst_buffer_lua.so").exists()) {
            longhaul_skip::skip!("this Slurm has no plugin burst_buffer/lua");
            return None;
        }
        let dir = cluster.site.directory.path();
        let at = |name: &str| text(&dir.join(name)).to_owned();
        for name in ["slurm-state", "slurm-spool"] {
            fs::create_dir(at(name)).expect("made");
        }
        fs::write(at("munge.key"), [7u8; 1024]).expect("written");
        fs::set_permissions(at("munge.key"), fs::Permissions::from_mode(0o400)).expect("set");
        let free = || TcpListener::bind("127.0.0.1:0").expect("a port").local_addr().expect("bound").port();
        let host = fs::read_to_string("/proc/sys/kernel/hostname").expect("a name");
        let host = host.trim();
        let d = text(dir);
        let (controller, node) = (free(), free());
        let conf = format!(
            "ClusterName=test\nSlurmctldHost=localhost(127.0.0.1)\nSlurmctldPort={controller}\n\
             SlurmdPort={node}\nAuthType=auth/munge\nAuthInfo=socket={d}/munge.sock\nCredType=cred/munge\n\
             SlurmUser=root\nSlurmdUser=root\nStateSaveLocation={d}/slurm-state\n\
             SlurmdSpoolDir={d}/slurm-spool\nSlurmctldPidFile={d}/slurmctld.pid\n\
             SlurmdPidFile={d}/slurmd.pid\nSlurmctldLogFile={d}/slurmctld.log\nSlurmdLogFile={d}/slurmd.log\n\
             SwitchType=switch/none\nMpiDefault=none\nProctrackType=proctrack/pgid\nTaskPlugin=task/none\n\
             SchedulerParameters=batch_sched_delay=0,sched_interval=1,bf_interval=1\nReturnToService=2\n\
             BurstBufferType=burst_buffer/lua\nDebugFlags=BurstBuffer\nProlog={d}/prolog\nEpilog={d}/epilog\n\
             PrologFlags=Alloc\nJobCompType=jobcomp/none\nMailProg=/bin/true\n\
             NodeName=n1 NodeHostname={host} NodeAddr=127.0.0.1 CPUs=2 State=UNKNOWN\n\
             PartitionName=all Nodes=n1 Default=YES MaxTime=INFINITE State=UP\n"
        );
        fs::write(at("slurm.conf"), conf).expect("written");
        fs::write(at("burst_buffer.conf"), "Directive=LONGHAUL\n").expect("written");
        let mut slurm = Slurm { processes: Vec::new(), conf: dir.join("slurm.conf") };
        let option = |name: &str, file: &str| format!("--{name}={}", at(file));
        slurm.run(
            "munged",
            &[
                "--foreground",
                "--force",
                "--num-threads=1",
                &option("key-file", "munge.key"),
                &option("socket", "munge.sock"),
                &option("pid-file", "munged.pid"),
                &option("log-file", "munged.log"),
                &option("seed-file", "munged.seed"),
            ],
        );
        until("munged to listen", || dir.join("munge.sock").exists());
        let conf = at("slurm.conf");
        slurm.run("slurmctld", &["-D", "-i", "-f", &conf]);
        slurm.run("slurmd", &["-D", "-N", "n1", "-f", &conf]);
        until("the node to be idle", || {
            slurm.has_ended() || slurm.command("sinfo", &["--noheader", "--format=%T"]).stdout == "idle\n"
        });
        if slurm.has_ended() {
            let said = fs::read_to_string(at("slurmctld.log")).unwrap_or_default();
            let last = said.lines().rfind(|line| line.contains("error") || line.contains("fatal"));
            longhaul_skip::skip!("Slurm does not start here: {}", last.unwrap_or("it gives no reason"));
            return None;
        }
        Some(slurm)
    }

    fn run(&mut self, program: &str, args: &[&str]) {
        let mut command = Command::new(program);
        command.args(args).env("SLURM_CONF", &self.conf);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        self.processes.push(Running(command.spawn().expect("started")));
    }

    fn has_ended(&self) -> bool {
        self.processes.iter().any(|process| has_ended(&process.id().to_string()))
    }

    fn command(&self, program: &str, args: &[&str]) -> Ran {
        let mut command = Command::new(program);
        command.args(args).env("SLURM_CONF", &self.conf);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        finish(command.spawn().expect("started"))
    }

    /// Submits a script as the user of jobs.
    fn submit(&self, script: &str, name: &str, dir: &Path) -> Ran {
        let user = ["--reuid", USER, "--regid", USER, "--clear-groups", "sbatch", "--parsable"];
        let (name, out) = (format!("--job-name={name}"), format!("--output={}/job.out", text(dir)));
        let chdir = format!("--chdir={}", text(dir));
        self.command("setpriv", &[&user[..], &[&name, &out, &chdir, script]].concat())
    }

    fn state(&self, job: &str) -> String {
        self.command("scontrol", &["--oneliner", "show", "job", job]).stdout
    }

    /// Ends what runs, the daemons of Slurm first.
    fn stop(mut self) {
        while let Some(mut process) = self.processes.pop() {
            common::signal(&process, "TERM");
            process.end(PATIENCE).expect("ended");
        }
    }
}

#[test]
fn a_real_slurm_runs_a_job_with_storage_from_setup_to_teardown() {
    if !can_mount() {
        return;
    }
    let Some(cluster) = Cluster::new(3) else { return };
    let Some(slurm) = Slurm::start(&cluster) else { return };
    let home = cluster.users("home");
    fs::write(home.join("input"), "6").expect("written");
    let path = cluster.path("job.sh");
    let name = "na me;touch injected;$(touch injected)";
    let write = |capacity: &str| {
        let lines = [
            "#!/bin/sh".to_owned(),
            format!("#LONGHAUL pool=p capacity={capacity} fs=ext4 width=3"),
            format!("#LONGHAUL stage_in source={}/input destination=input", text(&home)),
            // Slurm puts the name of the job in place of %x, and its number in place of %j.
            format!("#LONGHAUL stage_out source=output destination='{}/%x-%j'", text(&home)),
            "set -e\ncd \"$LONGHAUL_DIR\"\nmountpoint -q .\nexpr \"$(cat input)\" '*' 7 > output\n"
                .to_owned(),
        ];
        fs::write(&path, lines.join("\n")).expect("written");
    };
    write("a-lot");
    let ran = slurm.submit(text(&path), name, &home);
    assert!(ran.code != Some(0), "{ran:?}");
    write("48MiB");
    let ran = slurm.submit(text(&path), name, &home);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    let job = ran.stdout.trim().to_owned();
    let log = || {
        let read = |name: &str| fs::read_to_string(cluster.path(name)).unwrap_or_default();
        format!("{}\n{}\n{}", read("slurmctld.log"), read("slurmd.log"), read("home/job.out"))
    };
    until("the job to end", || {
        let state = slurm.state(&job);
        let is_wrong = state.contains("JobState=FAILED") || state.contains("burst_buffer/lua: ");
        assert!(!is_wrong, "{state}\n{}", log());
        state.contains("JobState=COMPLETED")
    });
    until("the teardown", || cluster.site.last(&["pool", "jobs"])["jobs"] == 0);
    let output = home.join(format!("{name}-{job}"));
    until("slurmctld to be done with it", || !slurm.state(&job).contains("STAGE_OUT"));
    assert_eq!(fs::read_to_string(&output).unwrap_or_else(|e| panic!("{e}\n{}", log())), "42\n");
    assert!(!home.join("injected").exists(), "the name was executed");
    cluster.is_clean();
    // Slurm gives the capacity back, and the node stays in use.
    let state = slurm.command("scontrol", &["show", "burst"]).stdout;
    assert!(state.contains("PoolName[0]=p") && state.contains("UsedSpace=0\n"), "{state}");
    assert_eq!(slurm.command("sinfo", &["--noheader", "--format=%T"]).stdout, "idle\n");
    slurm.stop();
}
