{{- define "trainmaster.name" -}}
{{ .Release.Name }}-operator
{{- end }}

{{- define "trainmaster.labels" -}}
app.kubernetes.io/name: trainmaster-operator
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "trainmaster.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end }}
