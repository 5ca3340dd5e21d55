#!/usr/bin/env bash
# Installs Mica from its chart into the local cluster that runs now. Arguments are helm's.
set -euo pipefail
cd "$(dirname "$0")/.."
tool=${CLUSTER_TOOL:-bin/cluster}

cluster=$("$tool" info -o env)
eval "$cluster"
export KUBECONFIG
"$tool" load bin/kubelet-plugin.tar bin/controller.tar
# Helm 4's own way of waiting waits until MPS supervisors are replaced, which happens when no claim holds a share.
"$("$tool" tool helm)" upgrade --install mica deployments/helm/mica \
	--namespace mica --create-namespace \
	--set image.registry=mica.local --set image.repository=kubelet-plugin --set image.tag=dev --set image.pullPolicy=Never \
	--set nvidiaDriverRoot="$MICA_DRIVER_ROOT" \
	--set kubeletPlugin.kubeletPluginsDirectoryPath="$MICA_KUBELET_ROOT/plugins" \
	--set kubeletPlugin.kubeletRegistrarDirectoryPath="$MICA_KUBELET_ROOT/plugins_registry" \
	--set kubeletPlugin.cdiRoot="$MICA_CDI_ROOT" \
	--set controller.imageRepository=controller \
	--set mps.enabled=true --set mps.root="${MICA_MPS_ROOT:-$MICA_CLUSTER_DIR/mps}" \
	--wait=legacy --timeout 3m "$@"
