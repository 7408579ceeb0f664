//! The far machine of `cp`, `sync` and `diagnose`: how ssh reaches it, and which program runs there.

use crate::exit::Failure;
use clap::ValueEnum;
use longhaul_transfer::{Offer, Ssh, Via};
use std::ffi::OsString;
use std::path::PathBuf;

/// How data travels to and from an agent that ssh started.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum DataVia {
    /// Over separate connections, or through ssh if the ports are closed
    Auto,
    /// Over separate connections
    Direct,
    /// Through ssh: one stream, encrypted twice
    Ssh,
}

/// How the program on another machine is reached.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct RemoteArgs {
    /// The ssh program for HOST:PATH, and its arguments
    #[arg(long, value_name = "COMMAND", default_value = "ssh")]
    ssh: String,
    /// Name of this program on HOST
    #[arg(long, value_name = "COMMAND", default_value = "longhaul")]
    remote_program: String,
    /// Copy this program to the cache directory on HOST (~/.cache/longhaul/VERSION-HASH) and run
    /// it from there; nothing has to be installed on HOST
    #[arg(long, conflicts_with = "remote_program")]
    remote_install: bool,
    /// Program to copy [default: this one, if it is static or HOST has a compatible C library, else
    /// longhaul-ARCH-unknown-linux-musl beside it]
    #[arg(long, value_name = "FILE", requires = "remote_install")]
    remote_install_from: Option<PathBuf>,
    /// Range of ports for data connections to HOST [default: any]
    #[arg(long, value_name = "FROM-TO", value_parser = port_range)]
    port_range: Option<(u16, u16)>,
}

#[derive(Clone, Debug, clap::Args)]
pub(crate) struct FarArgs {
    #[command(flatten)]
    remote: RemoteArgs,
    /// How data travels to and from HOST
    #[arg(long, value_enum, default_value_t = DataVia::Auto)]
    via: DataVia,
}

impl RemoteArgs {
    fn offer(&self) -> Result<Offer, Failure> {
        let version = env!("CARGO_PKG_VERSION");
        match &self.remote_install_from {
            Some(path) => Ok(Offer { version: version.into(), programs: vec![path.clone()] }),
            None => Offer::of_this_program(version).map_err(|e| {
                Failure::failed(format_args!("cannot find the file of this program, to copy it: {e}"))
            }),
        }
    }

    pub(crate) fn ssh(&self) -> Result<Ssh, Failure> {
        Ok(Ssh {
            program: self.ssh.split_whitespace().map(str::to_owned).collect(),
            remote_program: self.remote_program.clone(),
            ports: self.port_range,
            install: self.remote_install.then(|| self.offer()).transpose()?,
            via: Via::Any,
        })
    }

    fn words(&self) -> Vec<OsString> {
        let mut words: Vec<OsString> = vec!["--ssh".into(), (&self.ssh).into()];
        if self.remote_install {
            words.push("--remote-install".into());
        } else {
            words.extend(["--remote-program".into(), (&self.remote_program).into()]);
        }
        if let Some(from) = &self.remote_install_from {
            words.extend(["--remote-install-from".into(), from.into()]);
        }
        if let Some((from, to)) = self.port_range {
            words.extend(["--port-range".into(), format!("{from}-{to}").into()]);
        }
        words
    }
}

impl FarArgs {
    pub(crate) fn ssh(&self) -> Result<Ssh, Failure> {
        let via = match self.via {
            DataVia::Auto => Via::Any,
            DataVia::Direct => Via::Direct,
            DataVia::Ssh => Via::Ssh,
        };
        Ok(Ssh { via, ..self.remote.ssh()? })
    }

    /// The same as arguments of another run of this program.
    pub(crate) fn words(&self) -> Vec<OsString> {
        let mut words = self.remote.words();
        if let Some(via) = self.via.to_possible_value() {
            words.extend(["--via".into(), via.get_name().into()]);
        }
        words
    }
}

/// Parses a range of TCP ports, `FROM-TO`.
pub(crate) fn port_range(text: &str) -> Result<(u16, u16), String> {
    let parsed = text.split_once('-').and_then(|(from, to)| Some((from.parse().ok()?, to.parse().ok()?)));
    parsed
        .filter(|(from, to)| 0 < *from && from <= to)
        .ok_or_else(|| "the form is FROM-TO, such as 50000-50100".into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser as _;

    #[derive(clap::Parser)]
    struct Program {
        #[command(flatten)]
        far: FarArgs,
    }

    #[test]
    fn another_run_gets_the_same_options() {
        for line in [
            "",
            "--ssh my-ssh --remote-program bin/longhaul --via ssh",
            "--remote-install --port-range 50000-50100",
            "--remote-install --remote-install-from dist/longhaul --via direct",
        ] {
            let parse = |words: Vec<OsString>| {
                let words = std::iter::once("longhaul".into()).chain(words);
                Program::try_parse_from(words).map(|program| program.far)
            };
            let far = parse(line.split(' ').filter(|word| !word.is_empty()).map(OsString::from).collect());
            let far = far.expect(line);
            assert_eq!(format!("{:?}", parse(far.words()).expect(line)), format!("{far:?}"));
        }
    }
}
