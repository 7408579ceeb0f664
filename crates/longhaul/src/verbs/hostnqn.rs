//! `longhaul show-hostnqn`.

use crate::events::HostSummary;
use crate::output::Output;
use longhaul_initiator::{HostIdentity, host_identity};

pub(crate) fn show(output: Output) {
    let HostIdentity { hostnqn, hostid, source } = host_identity();
    if source.is_none() {
        tracing::warn!(
            "this machine has neither /etc/nvme/hostnqn nor /etc/machine-id, and each command has another NQN: keep this \
             one ('longhaul show-hostnqn | sudo tee /etc/nvme/hostnqn')"
        );
    }
    if !output.is_json() {
        output.line(&hostnqn);
    }
    let source = source.map(str::to_owned);
    output.event(&HostSummary { hostnqn, hostid: hostid.to_string(), source });
}
