{{- define "lode.name" -}}
{{- .Release.Name | trunc 40 | trimSuffix "-" -}}
{{- end -}}

{{- define "lode.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end -}}

{{/* Labels of all objects; the argument is a dict with `root` and `part`. */}}
{{- define "lode.labels" -}}
{{ include "lode.selector" . }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
helm.sh/chart: {{ .root.Chart.Name }}-{{ .root.Chart.Version }}
{{- end -}}

{{- define "lode.selector" -}}
app.kubernetes.io/name: lode
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .part }}
{{- end -}}

{{- define "lode.environment" -}}
{{- range $name, $value := . }}
- name: {{ $name }}
  value: {{ $value | quote }}
{{- end }}
{{- end -}}

{{- define "lode.restricted" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end -}}

{{/* Variables, secrets and mounts that replicas and upkeep share. */}}
{{- define "lode.registry.environment" -}}
- name: LODE_REGISTRY_STORAGE
  value: {{ .Values.registry.storage | quote }}
{{- if .Values.registry.rules }}
- name: LODE_REGISTRY_RULES
  value: /etc/lode/rules.toml
{{- end }}
{{- include "lode.environment" .Values.registry.environment }}
{{- end -}}

{{- define "lode.registry.secrets" -}}
{{- with .Values.registry.credentialsSecret }}
envFrom:
  - secretRef: {name: {{ . }}}
{{- end }}
{{- end -}}
