//! The manifests of `contrib/kubernetes` and this program agree.

use crate::Args;
use crate::request::Parameters;
use clap::Parser;
use serde::Deserialize;
use serde_json::Value;
use std::collections::{BTreeSet, HashMap};
use std::fs;
use std::path::Path;

/// All documents of all manifests, with the names of their files.
fn documents() -> Vec<(String, Value)> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../contrib/kubernetes");
    let mut found = Vec::new();
    for entry in fs::read_dir(directory).expect("the manifests") {
        let path = entry.expect("an entry").path();
        if path.extension().is_none_or(|extension| extension != "yaml") {
            continue;
        }
        let (file, text) = (path.display().to_string(), fs::read_to_string(&path).expect("text"));
        for document in serde_yaml_ng::Deserializer::from_str(&text) {
            let document = Value::deserialize(document).unwrap_or_else(|e| panic!("{file}: {e}"));
            for field in ["apiVersion", "kind"] {
                assert!(document[field].is_string(), "{file}: a document has no {field}");
            }
            assert!(document["metadata"]["name"].is_string(), "{file}: a document has no name");
            found.push((file.clone(), document));
        }
    }
    found
}

fn of_kind(kind: &str) -> Vec<Value> {
    let found: Vec<Value> = documents()
        .into_iter()
        .filter(|(_, document)| document["kind"] == kind)
        .map(|(_, document)| document)
        .collect();
    assert!(!found.is_empty(), "no manifest has a {kind}");
    found
}

fn array(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

fn texts(value: &Value) -> Vec<&str> {
    array(value).iter().map(|value| value.as_str().expect("text")).collect()
}

/// Specifications of the pods of the driver.
fn pods() -> Vec<Value> {
    let made = of_kind("Deployment").into_iter().chain(of_kind("DaemonSet"));
    made.map(|made| made["spec"]["template"]["spec"].clone()).collect()
}

/// The arguments of the driver in a pod, as Kubernetes gives them.
fn arguments(pod: &Value) -> Args {
    let container = array(&pod["containers"]).iter().find(|container| container["name"] == "longhaul-csi");
    let container = container.expect("the driver");
    let mut given = vec!["longhaul-csi".to_owned()];
    for argument in texts(&container["args"]) {
        let mut argument = argument.to_owned();
        for variable in array(&container["env"]) {
            let name = variable["name"].as_str().expect("a name");
            argument = argument.replace(&format!("$({name})"), "n1");
        }
        assert!(!argument.contains("$("), "{argument}: a variable is not set");
        given.push(argument);
    }
    Args::try_parse_from(given).unwrap_or_else(|e| panic!("{e}"))
}

#[test]
fn the_driver_takes_its_arguments() {
    let pods = pods();
    let [controller, node] = &pods[..] else { panic!("a controller, and a node: {pods:?}") };
    let (controller, node) = (arguments(controller), arguments(node));
    assert!(controller.controller && controller.node_id.is_none() && controller.hostnqn.is_some());
    assert!(!node.controller && node.on_host && node.node_id.is_some_and(|id| crate::names::is_nqn(&id)));
    assert!(controller.hostnqn.is_some_and(|nqn| crate::names::is_nqn(&nqn)));
}

#[test]
fn all_name_the_same_driver_and_socket() {
    let pod = &pods()[0];
    let args = arguments(pod);
    let driver = Value::from(args.driver_name.clone());
    assert_eq!(of_kind("CSIDriver")[0]["metadata"]["name"], driver);
    assert!(of_kind("StorageClass").iter().all(|class| class["provisioner"] == driver));
    assert!(of_kind("VolumeSnapshotClass").iter().all(|class| class["driver"] == driver));
    for pod in pods() {
        let endpoint = arguments(&pod).endpoint.to_string();
        for container in
            array(&pod["containers"]).iter().filter(|container| container["name"] != "longhaul-csi")
        {
            let address = format!("--csi-address={}", endpoint.trim_start_matches("unix://"));
            assert!(texts(&container["args"]).contains(&&*address), "{}: no {address}", container["name"]);
        }
    }
    let registration = format!("/var/lib/kubelet/plugins/{}/csi.sock", args.driver_name);
    let text = of_kind("DaemonSet")[0].to_string();
    assert!(text.contains(&format!("--kubelet-registration-path={registration}")), "{text}");
}

#[test]
fn what_pods_refer_to_is_there() {
    let namespace = of_kind("Namespace")[0]["metadata"]["name"].clone();
    let accounts: Vec<Value> =
        of_kind("ServiceAccount").into_iter().map(|made| made["metadata"]["name"].clone()).collect();
    let settings = &of_kind("ConfigMap")[0];
    for pod in pods() {
        assert!(accounts.contains(&pod["serviceAccountName"]), "{}", pod["serviceAccountName"]);
        let volumes: BTreeSet<&str> =
            array(&pod["volumes"]).iter().map(|volume| volume["name"].as_str().expect("a name")).collect();
        for container in array(&pod["containers"]) {
            for mount in array(&container["volumeMounts"]) {
                let name = mount["name"].as_str().expect("a name");
                assert!(volumes.contains(name), "{}: no volume {name}", container["name"]);
            }
            for variable in array(&container["env"]) {
                let from = &variable["valueFrom"]["configMapKeyRef"];
                let key = from["key"].as_str().filter(|_| from["name"] == settings["metadata"]["name"]);
                let is_there = key.is_some_and(|key| settings["data"][key].is_string());
                assert!(is_there || variable["valueFrom"]["fieldRef"].is_object(), "{variable}");
            }
        }
    }
    for (file, document) in documents() {
        let own = &document["metadata"]["namespace"];
        assert!(own.is_null() || *own == namespace, "{file}: namespace {own}");
        for subject in array(&document["subjects"]) {
            assert!(
                accounts.contains(&subject["name"]) && subject["namespace"] == namespace,
                "{file}: {subject}"
            );
        }
        let role = &document["roleRef"];
        let is_there = |role: &Value| {
            documents()
                .iter()
                .any(|(_, made)| made["kind"] == role["kind"] && made["metadata"]["name"] == role["name"])
        };
        assert!(role.is_null() || is_there(role), "{file}: {role}");
    }
}

#[test]
fn storage_classes_have_parameters_that_are_known() {
    for class in of_kind("StorageClass") {
        let given: HashMap<String, String> =
            serde_json::from_value(class["parameters"].clone()).expect("parameters are text");
        Parameters::new(&given).unwrap_or_else(|e| panic!("{class}: {e}"));
    }
    let claim = &of_kind("PersistentVolumeClaim")[0];
    let classes = of_kind("StorageClass");
    assert!(
        classes.iter().any(|class| class["metadata"]["name"] == claim["spec"]["storageClassName"]),
        "{claim}"
    );
}
