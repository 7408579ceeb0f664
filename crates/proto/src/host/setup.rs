//! How a connection begins.

use longhaul_wire::pdu::{self, ALIGN_MAX, Fes, IcResp, PFV_1_0, field};

use super::{HostEvent, HostQueue};
use crate::transport::{Fault, Params};

impl HostQueue {
    pub(super) fn ic_resp(&mut self) -> Result<(), Fault> {
        let resp: IcResp = self.conn.rx.header()?;
        //= NVMe-TCP 1.1, ICResp PDU: PFV is the version that the host asked for
        if resp.pfv.get() != PFV_1_0 {
            let what = "PDU format version is not supported";
            return Err(Fault { fes: Fes::UnsupportedParameter, fei: field::PFV, what });
        }
        //= NVMe-TCP 1.1, ICResp PDU: CPDA is 0 to 31
        if resp.cpda > ALIGN_MAX {
            return Err(Fault::field(field::PDA, "CPDA is above 31"));
        }
        let header_digest = resp.dgst & pdu::DGST_HEADER != 0;
        let data_digest = resp.dgst & pdu::DGST_DATA != 0;
        //= NVMe-TCP 1.1, ICResp PDU: a controller grants only digests that the host asked for
        if (header_digest && !self.config.header_digest) || (data_digest && !self.config.data_digest) {
            return Err(Fault::field(field::DGST, "a digest that was not asked for"));
        }
        let maxh2cdata = resp.maxh2cdata.get();
        //= NVMe-TCP 1.1, ICResp PDU: MAXH2CDATA is a multiple of 4, and 4096 at least
        if maxh2cdata < pdu::MAXH2CDATA_MIN || !maxh2cdata.is_multiple_of(4) {
            return Err(Fault::field(field::MAXH2CDATA, "MAXH2CDATA is below 4096 or no multiple of 4"));
        }
        let params = Params {
            header_digest,
            data_digest,
            hpda: self.config.hpda,
            cpda: resp.cpda,
            maxh2cdata,
            maxr2t: self.config.maxr2t,
        };
        self.conn.establish(params, params.to_host());
        self.conn.events.push_back(HostEvent::Ready(params));
        Ok(())
    }
}
