//! How a connection begins.

use longhaul_wire::pdu::{self, ALIGN_MAX, Fes, IcReq, IcResp, PFV_1_0, field};

use super::{TargetEvent, TargetQueue};
use crate::transport::{Fault, Params};

impl TargetQueue {
    pub(super) fn ic_req(&mut self) -> Result<(), Fault> {
        let req: IcReq = self.conn.rx.header()?;
        //= NVMe-TCP 1.1, ICReq PDU: a PDU format version that is not supported ends the connection
        if req.pfv.get() != PFV_1_0 {
            let what = "PDU format version is not supported";
            return Err(Fault { fes: Fes::UnsupportedParameter, fei: field::PFV, what });
        }
        //= NVMe-TCP 1.1, ICReq PDU: HPDA is 0 to 31
        if req.hpda > ALIGN_MAX {
            return Err(Fault::field(field::PDA, "HPDA is above 31"));
        }
        //= NVMe-TCP 1.1, ICResp PDU: digests are in use if the host asked and the controller agrees
        let params = Params {
            header_digest: self.config.header_digest && req.dgst & pdu::DGST_HEADER != 0,
            data_digest: self.config.data_digest && req.dgst & pdu::DGST_DATA != 0,
            hpda: req.hpda,
            cpda: self.config.cpda,
            maxh2cdata: self.config.maxh2cdata,
            maxr2t: req.maxr2t.get().saturating_add(1),
        };
        let resp = IcResp::new(self.config.cpda, params.dgst(), self.config.maxh2cdata);
        self.conn.tx.header(&resp, false, 0);
        self.conn.establish(params, params.to_controller());
        self.conn.events.push_back(TargetEvent::Ready(params));
        Ok(())
    }
}
