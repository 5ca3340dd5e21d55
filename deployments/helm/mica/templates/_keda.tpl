{{- /* What the controller needs to serve KEDA's external scaler. */ -}}

{{- define "mica.kedaArguments" -}}
{{- $keda := .Values.controller.keda -}}
{{- if $keda.enabled -}}
- {{ printf "--keda-port=%d" (int $keda.port) | quote }}
- {{ printf "--plugin-pods=%s" (include "mica.pluginSelector" .) | quote }}
{{- if $keda.tls.secretName }}
- "--keda-tls-dir=/etc/mica/keda"
{{- end }}
- {{ printf "--keda-require-client-certificate=%t" $keda.tls.requireClientCertificate | quote }}
{{- if $keda.prometheus.triggers }}
- "--prometheus-triggers"
{{- end }}
{{- if $keda.profiles }}
- "--keda-profiles=/etc/mica/profiles/profiles.yaml"
{{- end }}
{{- with $keda.prometheus.address }}
- {{ printf "--prometheus-address=%s" . | quote }}
{{- end }}
{{- if $keda.prometheus.secretName }}
- "--prometheus-secret-dir=/etc/mica/prometheus"
{{- end }}
{{- end }}
{{- end -}}

{{- define "mica.kedaVolumeMounts" -}}
{{- $keda := .Values.controller.keda -}}
{{- if $keda.enabled -}}
{{- if $keda.tls.secretName }}
- {name: keda, mountPath: /etc/mica/keda, readOnly: true}
{{- end }}
{{- if $keda.profiles }}
- {name: profiles, mountPath: /etc/mica/profiles, readOnly: true}
{{- end }}
{{- if $keda.prometheus.secretName }}
- {name: prometheus, mountPath: /etc/mica/prometheus, readOnly: true}
{{- end }}
{{- end }}
{{- end -}}

{{- define "mica.kedaVolumes" -}}
{{- $keda := .Values.controller.keda -}}
{{- if $keda.enabled -}}
{{- with $keda.tls.secretName }}
- name: keda
  secret: {secretName: {{ . | quote }}, defaultMode: 0444}
{{- end }}
{{- if $keda.profiles }}
- name: profiles
  configMap: {name: {{ printf "%s-profiles" (include "mica.controllerName" .) | quote }}}
{{- end }}
{{- with $keda.prometheus.secretName }}
- name: prometheus
  secret: {secretName: {{ . | quote }}, defaultMode: 0444}
{{- end }}
{{- end }}
{{- end -}}

{{- /* The plugin's pods, whose metrics tell how busy devices are. */ -}}
{{- define "mica.pluginSelector" -}}
app.kubernetes.io/name={{ include "mica.name" . }},app.kubernetes.io/instance={{ .Release.Name }},app.kubernetes.io/component=kubelet-plugin
{{- end -}}
