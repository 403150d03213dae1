{{- define "rose.worker" }}{{ .Release.Name }}-worker{{ end }}
{{- define "rose.gateway" }}{{ .Release.Name }}-gateway{{ end }}
{{- define "rose.redis" }}{{ .Release.Name }}-redis{{ end }}

{{- /* HOST:PORT of Redis, and its port alone. */}}
{{- define "rose.redisAddress" }}
{{- if .Values.redis.enabled }}{{ include "rose.redis" . }}.{{ .Release.Namespace }}.svc:6379
{{- else }}{{ .Values.externalRedis.address }}{{ end }}
{{- end }}
{{- define "rose.redisPort" }}{{ include "rose.redisAddress" . | splitList ":" | last }}{{ end }}

{{- /* The variables that give a program its URL: from the Secret of passwords where Redis is the
chart's. The programs percent-decode the password: letters and digits need no encoding. */}}
{{- define "rose.redisVariables" }}
- name: REDIS_PASSWORD
  valueFrom:
    secretKeyRef: {name: {{ .root.Values.redis.passwordsSecret }}, key: {{ upper .user }}_PASSWORD}
- name: ROSE_REDIS_URL
  value: redis://{{ .user }}:$(REDIS_PASSWORD)@{{ include "rose.redisAddress" .root }}/0
{{- end }}

{{- /* Of a pod that runs as this user. */}}
{{- define "rose.podSecurity" -}}
runAsNonRoot: true
runAsUser: {{ . }}
runAsGroup: {{ . }}
fsGroup: {{ . }}
seccompProfile: {type: RuntimeDefault}
{{- end }}

{{- define "rose.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end }}

{{- define "rose.egress" }}
- ports:
    - {port: 53, protocol: UDP}
    - {port: 53, protocol: TCP}
- ports:
    - {port: {{ include "rose.redisPort" . }}, protocol: TCP}
  {{- if .Values.redis.enabled }}
  to:
    - podSelector:
        matchLabels: {app.kubernetes.io/name: {{ include "rose.redis" . }}}
  {{- end }}
{{- with .Values.networkPolicy.egressPorts }}
- ports:
    {{- range . }}
    - {port: {{ int . }}, protocol: TCP}
    {{- end }}
{{- end }}
{{- end }}
