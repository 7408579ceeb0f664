//! Metrics of an agent.

use crate::families::{AGENT_BYTES, AGENT_ENDED, AGENT_FILES, AGENT_SESSIONS, STALLED};
use crate::page::Page;
use crate::questions::Questions;
use crate::server::{STALL, Source};
use longhaul_engine::Handle;
use longhaul_transfer::AgentObserver;
use longhaul_transfer::wire::CopyDirection;

/// The metrics of an agent, and its health.
#[derive(Clone, Debug)]
pub struct AgentSource {
    observer: AgentObserver,
    questions: Questions,
}

impl AgentSource {
    /// The metrics of the agent that `observer` watches.
    pub fn new(observer: AgentObserver) -> AgentSource {
        AgentSource { observer, questions: Questions::default() }
    }

    fn threads(&self) -> [(String, Handle); 1] {
        [("transfer".to_owned(), self.observer.thread())]
    }
}

/// What an agent does in a session.
fn direction(direction: CopyDirection) -> &'static str {
    match direction {
        CopyDirection::Push => "receive",
        CopyDirection::Pull => "send",
        CopyDirection::Onward => "onward",
        CopyDirection::Mount => "mount",
    }
}

impl Source for AgentSource {
    fn collect(&self, page: &mut Page) {
        for (way, counts) in self.observer.sessions() {
            let way = direction(way);
            page.count(AGENT_SESSIONS, &[way], counts.open as u64);
            page.count(AGENT_ENDED, &[way, "done"], counts.done);
            page.count(AGENT_ENDED, &[way, "failed"], counts.failed);
            page.count(AGENT_FILES, &[way], counts.files);
            page.count(AGENT_BYTES, &[way], counts.bytes);
        }
        page.count(STALLED, &[], self.questions.unanswered(&self.threads(), STALL).len() as u64);
    }

    fn check_health(&self) -> Result<(), String> {
        self.questions.check(&self.threads(), STALL)
    }
}
