{{- define "mica.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 63 | trimSuffix "-" -}}
{{- end -}}

{{- define "mica.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 50 | trimSuffix "-" -}}
{{- else -}}
{{- $name := default .Chart.Name .Values.nameOverride -}}
{{- if contains $name .Release.Name -}}
{{- .Release.Name | trunc 50 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name $name | trunc 50 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* Namespace of the objects: another chart that has this one as a part may give it its own. */}}
{{- define "mica.namespace" -}}
{{- default .Release.Namespace .Values.namespaceOverride -}}
{{- end -}}

{{/* Name of what belongs to the plugin: fullname is cut at 50 so that this fits 63. */}}
{{- define "mica.pluginName" -}}
{{- printf "%s-plugin" (include "mica.fullname" .) -}}
{{- end -}}

{{/*
Name of a cluster-wide object: two releases of one name in two namespaces must not share
it. VALUE is the plugin's name, or what else tells the object's purpose.
*/}}
{{- define "mica.clusterName" -}}
{{- if eq (include "mica.fullname" .) (include "mica.namespace" .) -}}
{{- include "mica.pluginName" . -}}
{{- else -}}
{{- printf "%s-%s" (include "mica.namespace" .) (include "mica.pluginName" .) -}}
{{- end -}}
{{- end -}}

{{- define "mica.selectorLabels" -}}
app.kubernetes.io/name: {{ include "mica.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/component: kubelet-plugin
{{- end -}}

{{- define "mica.labels" -}}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" | trunc 63 | trimSuffix "-" }}
{{ include "mica.selectorLabels" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end -}}

{{/* Name of what belongs to the supervisor of MPS control daemons. */}}
{{- define "mica.mpsName" -}}
{{- printf "%s-mps" (include "mica.fullname" .) -}}
{{- end -}}

{{- define "mica.mpsSelectorLabels" -}}
app.kubernetes.io/name: {{ include "mica.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/component: mps
{{- end -}}

{{- define "mica.mpsLabels" -}}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" | trunc 63 | trimSuffix "-" }}
{{ include "mica.mpsSelectorLabels" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end -}}

{{- define "mica.serviceAccountName" -}}
{{- if .Values.serviceAccount.name -}}
{{- .Values.serviceAccount.name -}}
{{- else -}}
{{- include "mica.pluginName" . -}}
{{- end -}}
{{- end -}}

{{/*
The directory that has the driver root, which is what is mounted. A mount of the driver root
itself would show the driver container that ran first for ever: what is unmounted and mounted
anew is propagated into mounts of what is above it, and not into copies of itself.
*/}}
{{- define "mica.driverRootParent" -}}
{{- dir (clean .Values.nvidiaDriverRoot) -}}
{{- end -}}

{{/* The driver root in the plugin's and the supervisor's container. */}}
{{- define "mica.driverRootInContainer" -}}
{{- clean (printf "/driver-root/%s" (base (clean .Values.nvidiaDriverRoot))) -}}
{{- end -}}

{{/*
The affinity of whatever keeps the NVIDIA driver in use: kubeletPlugin.affinity, and labels by
which others ask for the driver, as k8s-driver-manager does before it unloads it, NVIDIA's MIG
manager, and an operator of GPUs by hand. Of NVIDIA's GPU Operator 26.7, GPUCluster has the
first label and ClusterPolicy the second; older ones have none, so that its absence has to do.
*/}}
{{- define "mica.affinity" -}}
{{- $undisturbed := list -}}
{{- range $label := list "nvidia.com/gpu.deploy.dra-driver" "nvidia.com/gpu.deploy.client" -}}
{{- $undisturbed = append $undisturbed (dict "key" $label "operator" "NotIn" "values" (list "false" "paused-for-driver-upgrade" "paused-for-mig-change")) -}}
{{- end -}}
{{- $affinity := deepCopy (default dict .Values.kubeletPlugin.affinity) -}}
{{- $nodes := default dict $affinity.nodeAffinity -}}
{{- $required := default dict $nodes.requiredDuringSchedulingIgnoredDuringExecution -}}
{{- $terms := list -}}
{{- range $term := default (list dict) $required.nodeSelectorTerms -}}
{{- $terms = append $terms (set $term "matchExpressions" (concat (default list $term.matchExpressions) $undisturbed)) -}}
{{- end -}}
{{- $nodes = set $nodes "requiredDuringSchedulingIgnoredDuringExecution" (set $required "nodeSelectorTerms" $terms) -}}
{{- set $affinity "nodeAffinity" $nodes | toYaml -}}
{{- end -}}

{{/* Where traces go, as OpenTelemetry's own variables say it. */}}
{{- define "mica.tracingEnv" -}}
{{- with .Values.tracing.endpoint }}
- name: OTEL_EXPORTER_OTLP_ENDPOINT
  value: {{ . | quote }}
- name: OTEL_TRACES_SAMPLER
  value: parentbased_traceidratio
- name: OTEL_TRACES_SAMPLER_ARG
  value: {{ $.Values.tracing.samplingRatio | quote }}
{{- end }}
{{- end -}}

{{/* The collector's port, wherever it is. */}}
{{- define "mica.egressToCollector" -}}
{{- with .Values.tracing.endpoint }}
- ports:
    - {protocol: TCP, port: {{ (urlParse .).host | splitList ":" | last | int }}}
{{- end }}
{{- end -}}

{{- define "mica.egressToDNS" -}}
- ports:
    - {protocol: UDP, port: 53}
    - {protocol: TCP, port: 53}
{{- end -}}

{{/* The way to the API server, whose address no NetworkPolicy can name. */}}
{{- define "mica.egressToAPI" -}}
- ports:
    {{- range .Values.networkPolicy.apiServerPorts }}
    - {protocol: TCP, port: {{ int . }}}
    {{- end }}
{{- end -}}

{{- define "mica.image" -}}
{{- $image := .Values.image -}}
{{- $name := printf "%s:%s" $image.repository (default .Chart.AppVersion $image.tag) -}}
{{- if $image.registry -}}
{{- printf "%s/%s" (trimSuffix "/" $image.registry) $name -}}
{{- else -}}
{{- $name -}}
{{- end -}}
{{- end -}}

{{/* The DeviceClass of MIG partitions: mig.nvidia.com beside gpu.nvidia.com. */}}
{{- define "mica.migClassName" -}}
{{- printf "mig.%s" (trimPrefix "gpu." .Values.driverName) -}}
{{- end -}}

{{/*
The DeviceClass of shares of GPUs or partitions: timeslice.nvidia.com beside gpu.nvidia.com.
*/}}
{{- define "mica.shareClassName" -}}
{{- printf "%s.%s" .type (trimPrefix "gpu." .driverName) -}}
{{- end -}}

{{/* The default GPUPolicy, which is cluster-wide. */}}
{{- define "mica.policyName" -}}
{{- if eq (include "mica.fullname" .) (include "mica.namespace" .) -}}
{{- printf "%s-default" (include "mica.fullname" .) -}}
{{- else -}}
{{- printf "%s-%s-default" (include "mica.namespace" .) (include "mica.fullname" .) -}}
{{- end -}}
{{- end -}}

{{/* Name of what belongs to the controller. */}}
{{- define "mica.controllerName" -}}
{{- printf "%s-controller" (include "mica.fullname" .) -}}
{{- end -}}

{{/* Name of a cluster-wide object of the controller. */}}
{{- define "mica.controllerClusterName" -}}
{{- if eq (include "mica.fullname" .) (include "mica.namespace" .) -}}
{{- include "mica.controllerName" . -}}
{{- else -}}
{{- printf "%s-%s" (include "mica.namespace" .) (include "mica.controllerName" .) -}}
{{- end -}}
{{- end -}}

{{- define "mica.controllerSelectorLabels" -}}
app.kubernetes.io/name: {{ include "mica.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/component: controller
{{- end -}}

{{/* Names and labels of the Job that takes back what no controller renews. */}}
{{- define "mica.releaseName" -}}
{{- printf "%s-release" (include "mica.controllerName" .) | trunc 52 | trimSuffix "-" -}}
{{- end -}}

{{/* The values of an earlier chart, which helm upgrade --reuse-values keeps, have none. */}}
{{- define "mica.releaseSchedule" -}}
{{- dig "release" "schedule" "17 * * * *" .Values.controller -}}
{{- end -}}

{{- define "mica.releaseClusterName" -}}
{{- printf "%s-release" (include "mica.controllerClusterName" .) -}}
{{- end -}}

{{- define "mica.releaseSelectorLabels" -}}
{{ include "mica.controllerSelectorLabels" . | replace "component: controller" "component: release" }}
{{- end -}}

{{- define "mica.releaseLabels" -}}
{{ include "mica.controllerLabels" . | replace "component: controller" "component: release" }}
{{- end -}}

{{- define "mica.controllerLabels" -}}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" | trunc 63 | trimSuffix "-" }}
{{ include "mica.controllerSelectorLabels" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end -}}

{{- define "mica.controllerServiceAccountName" -}}
{{- default (include "mica.controllerName" .) .Values.controller.serviceAccount.name -}}
{{- end -}}

{{/* The controller's image has registry, tag and pull policy of the plugin's. */}}
{{- define "mica.controllerImage" -}}
{{- $name := printf "%s:%s" .Values.controller.imageRepository (default .Chart.AppVersion .Values.image.tag) -}}
{{- if .Values.image.registry -}}
{{- printf "%s/%s" (trimSuffix "/" .Values.image.registry) $name -}}
{{- else -}}
{{- $name -}}
{{- end -}}
{{- end -}}

{{/* The priority class of placeholders, which is cluster-wide. */}}
{{- define "mica.placeholderPriorityClass" -}}
{{- printf "%s-placeholder" (trimSuffix "-controller" (include "mica.controllerClusterName" .)) -}}
{{- end -}}

{{/* Namespace of placeholders, in which nothing else is. */}}
{{- define "mica.placeholderNamespace" -}}
{{- default (printf "%s-placeholders" (trimSuffix "-controller" (include "mica.controllerClusterName" .)) | trunc 63 | trimSuffix "-") .Values.controller.placeholder.namespace.name -}}
{{- end -}}

{{/* The image of placeholders. */}}
{{- define "mica.placeholderImage" -}}
{{- default (include "mica.controllerImage" .) .Values.controller.placeholder.image -}}
{{- end -}}

{{/* Values and feature gates of NVIDIA's chart that are set: a map of each to what to do instead. */}}
{{- define "mica.nvidiaValues" -}}
{{- $set := dict -}}
{{- range $entry := .Files.Get "nvidia-values.yaml" | fromYamlArray -}}
{{- $found := $.Values -}}
{{- range $name := splitList "." $entry.value -}}
{{- $found = get (default dict $found) $name -}}
{{- end -}}
{{- if $found -}}
{{- $_ := set $set $entry.value $entry.instead -}}
{{- end -}}
{{- end -}}
{{- toJson $set -}}
{{- end -}}

{{/* Those without effect, a line each. */}}
{{- define "mica.ignoredValues" -}}
{{- range $name, $instead := include "mica.nvidiaValues" . | fromJson -}}
{{- if not (and (eq $name "featureGates.MPSSupport") $.Values.mps.enabled) }}
- {{ $name }}: {{ $instead }}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* Whether the chart's GPUPolicy has MIG partitions created. In values of NVIDIA's chart, its feature gate decides, which is
     off by default. */}}
{{- define "mica.migCreation" -}}
{{- if .Values.gpuPolicy.migCreation -}}
{{- .Values.gpuPolicy.migCreation -}}
{{- else if hasKey (default dict .Values.featureGates) "DynamicMIG" -}}
{{- ternary "OnDemand" "Never" .Values.featureGates.DynamicMIG -}}
{{- else -}}
{{- empty (include "mica.nvidiaValues" . | fromJson) | ternary "OnDemand" "Never" -}}
{{- end -}}
{{- end -}}

{{/* The limit of the claims of a whole GPU, by NVIDIA's value; empty for one claim at a time. */}}
{{- define "mica.consumableShares" -}}
{{- $limit := toString (default "" .Values.consumableShares) -}}
{{- ternary "" $limit (eq $limit "disabled") -}}
{{- end -}}

{{- define "mica.wholeGPUs" -}}
{ {{- with include "mica.consumableShares" . }}consumableShares: {{ . }}{{ end -}} }
{{- end -}}

{{/* Not empty where the cluster serves no MutatingAdmissionPolicy: before Kubernetes 1.36, or where it is switched
     off, which only a cluster that is asked can tell. */}}
{{- define "mica.lacksMutation" -}}
{{- if not (.Capabilities.APIVersions.Has "admissionregistration.k8s.io/v1/MutatingAdmissionPolicy") -}}
{{- if or (semverCompare "<1.36.0-0" .Capabilities.KubeVersion.Version) (lookup "v1" "Namespace" "" "kube-system") -}}
true
{{- end -}}
{{- end -}}
{{- end -}}
