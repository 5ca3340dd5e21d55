{{/*
What a policy of configurations in claims looks at. Others cost the API server no more than the second condition.
A version of the API that is not v1 is converted.
*/}}
{{- define "mica.claimsWithConfigs" -}}
failurePolicy: Ignore
matchConstraints:
  resourceRules:
    - apiGroups: ["resource.k8s.io"]
      apiVersions: ["v1"]
      operations: ["CREATE", "UPDATE"]
      resources: ["resourceclaims", "resourceclaimtemplates"]
matchConditions:
  - name: writes-a-spec
    expression: request.operation == "CREATE" || object.spec != oldObject.spec
  - name: configures-the-driver
    expression: >-
      (request.kind.kind == "ResourceClaimTemplate" ? object.spec.spec.?devices.?config.orValue([]) : object.spec.?devices.?config.orValue([]))
      .exists(c, c.?opaque.?driver.orValue("") == "{{ .Values.driverName }}")
{{- end -}}

{{/* The chart's DeviceClasses, by name: the kind of configuration that is for their devices. */}}
{{- define "mica.configKinds" -}}
{{- $kinds := dict .Values.driverName "GpuConfig" (include "mica.migClassName" .) "MigDeviceConfig" -}}
{{- range $class, $kind := include "mica.shareConfigKinds" . | fromJson -}}
{{- $kinds = set $kinds $class $kind -}}
{{- end -}}
{{- range $name, $product := .Values.deviceClass.products -}}
{{- $kinds = set $kinds (printf "%s.%s" $name $.Values.driverName) "GpuConfig" -}}
{{- end -}}
{{- range $name, $profile := .Values.deviceClass.profiles -}}
{{- $kinds = set $kinds (printf "%s.%s" $name (include "mica.migClassName" $)) "MigDeviceConfig" -}}
{{- end -}}
{{- toJson $kinds -}}
{{- end -}}

{{/* Those of shares. */}}
{{- define "mica.shareConfigKinds" -}}
{{- $kinds := dict -}}
{{- range $type, $kind := dict "timeslice" "GpuConfig" "mps" "GpuConfig" "mig-timeslice" "MigDeviceConfig" "mig-mps" "MigDeviceConfig" -}}
{{- $kinds = set $kinds (include "mica.shareClassName" (dict "type" $type "driverName" $.Values.driverName)) $kind -}}
{{- end -}}
{{- toJson $kinds -}}
{{- end -}}

{{/*
settings: of each of the driver's configurations, its kind, how it shares, the requests that it names.
requests: of each request its alternatives, each request, request/alternative, DeviceClass, admin.
arranged: the same, with how the configuration shares that counts for the alternative: the last of those that fit.
*/}}
{{- define "mica.configVariables" -}}
- name: kinds
  expression: >-
    {{ include "mica.configKinds" . }}
- name: shares
  expression: >-
    {{ include "mica.shareConfigKinds" . | fromJson | keys | sortAlpha | toJson }}
- name: spec
  expression: >-
    request.kind.kind == "ResourceClaimTemplate" ? object.spec.spec : object.spec
- name: settings
  expression: >-
    variables.spec.?devices.?config.orValue([]).filter(c, c.?opaque.?driver.orValue("") == "{{ .Values.driverName }}").map(c,
      [c.opaque.parameters.?kind.orValue(""),
       dyn(type(c.opaque.parameters.?sharing.orValue(null)) != map ? "" : c.opaque.parameters.sharing.?strategy.orValue("") == "MPS" ? "MPS" : "otherwise"),
       c.?requests.orValue([])])
- name: requests
  expression: >-
    variables.spec.?devices.?requests.orValue([]).map(r,
      r.?firstAvailable.orValue([]).map(a, [r.name, dyn(r.name + "/" + a.name), a.deviceClassName, dyn("")]) +
      (has(r.exactly) ? [[r.name, r.name, r.exactly.deviceClassName, dyn(r.exactly.?adminAccess.orValue(false) ? "admin" : "")]] : []))
- name: arranged
  expression: >-
    variables.requests.map(r, r.map(a, a +
      [variables.settings.filter(s, a[2] in variables.kinds && s[0] == variables.kinds[a[2]] &&
        (size(s[2]) == 0 || a[0] in s[2] || a[1] in s[2])).map(s, s[1])]
      .map(all, dyn(size(all) == 0 ? "" : all[size(all) - 1]))))
{{- end -}}
