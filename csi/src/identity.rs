//! The identity service.

use crate::driver::Driver;
use crate::v1::identity_server::Identity;
use crate::v1::plugin_capability::service::Type as Service;
use crate::v1::plugin_capability::volume_expansion::Type as Expansion;
use crate::v1::plugin_capability::{self, Type};
use crate::v1::*;
use std::collections::HashMap;
use std::sync::Arc;
use tonic::{Request, Response, Status};

/// The identity service.
#[derive(Clone, Debug)]
pub(crate) struct IdentityService {
    pub(crate) driver: Arc<Driver>,
    /// Name of the driver in the cluster.
    pub(crate) name: String,
}

#[tonic::async_trait]
impl Identity for IdentityService {
    async fn get_plugin_info(
        &self,
        _: Request<GetPluginInfoRequest>,
    ) -> Result<Response<GetPluginInfoResponse>, Status> {
        Ok(Response::new(GetPluginInfoResponse {
            name: self.name.clone(),
            vendor_version: env!("CARGO_PKG_VERSION").to_owned(),
            manifest: HashMap::new(),
        }))
    }

    async fn get_plugin_capabilities(
        &self,
        _: Request<GetPluginCapabilitiesRequest>,
    ) -> Result<Response<GetPluginCapabilitiesResponse>, Status> {
        let controller = self
            .driver
            .is_controller
            .then(|| Type::Service(plugin_capability::Service { r#type: Service::ControllerService as i32 }));
        let expansion =
            Type::VolumeExpansion(plugin_capability::VolumeExpansion { r#type: Expansion::Online as i32 });
        let capabilities = controller.into_iter().chain([expansion]);
        let capabilities = capabilities.map(|r#type| PluginCapability { r#type: Some(r#type) }).collect();
        Ok(Response::new(GetPluginCapabilitiesResponse { capabilities }))
    }

    async fn probe(&self, _: Request<ProbeRequest>) -> Result<Response<ProbeResponse>, Status> {
        self.driver
            .call("Probe", |driver| {
                // A program that cannot be run fails the probe; a catalog that cannot be reached is waited for.
                let unusable: Vec<String> = driver
                    .program
                    .pools(driver.manager.as_deref())?
                    .into_iter()
                    .filter(|(name, _)| driver.pools.contains(name))
                    .filter_map(|(name, error)| Some(format!("pool {name}: {}", error?)))
                    .collect();
                for why in &unusable {
                    eprintln!("longhaul-csi: Probe: {why}");
                }
                Ok(ProbeResponse { ready: Some(unusable.is_empty()) })
            })
            .await
    }
}
