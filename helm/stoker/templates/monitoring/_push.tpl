{{/* Push options of exporters, operators and the api, and their files. */}}
{{- define "stoker.push.args" -}}
{{- with .Values.monitoring.push -}}
{{- if .url -}}
{{- if and .tokenSecret .basicAuthSecret -}}
{{- fail "monitoring.push: give one of tokenSecret and basicAuthSecret" -}}
{{- end -}}
{{- if and (hasPrefix "http:" .url) (or .tokenSecret .basicAuthSecret) (not .allowHttp) -}}
{{- fail "monitoring.push: a token or password would cross the network in plain text; use https://, or set allowHttp" -}}
{{- end -}}
- {{ printf "--push-url=%s" .url | quote }}
- --push-every={{ .every }}
{{- if .tokenSecret }}
- --push-token-file=/etc/stoker/push/token
{{- end }}
{{- if .basicAuthSecret }}
- --push-basic-auth-file=/etc/stoker/push/auth
{{- end }}
{{- if .caSecret }}
- --push-ca=/etc/stoker/push/ca.crt
{{- end }}
{{- range $name, $value := .headers }}
- {{ printf "--push-header=%s=%s" $name $value | quote }}
{{- end }}
{{- range $name, $value := .labels }}
- {{ printf "--push-label=%s=%s" $name $value | quote }}
{{- end }}
{{- if .allowHttp }}
- --push-allow-http
{{- end }}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "stoker.push.mounts" -}}
{{- with .Values.monitoring.push -}}
{{- if and .url (or .tokenSecret .basicAuthSecret .caSecret) -}}
- name: push
  mountPath: /etc/stoker/push
  readOnly: true
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "stoker.push.volumes" -}}
{{- with .Values.monitoring.push -}}
{{- if and .url (or .tokenSecret .basicAuthSecret .caSecret) -}}
- name: push
  projected:
    sources:
    {{- range $key, $name := dict "token" .tokenSecret "auth" .basicAuthSecret "ca.crt" .caSecret }}
    {{- if $name }}
    - secret:
        name: {{ $name }}
        items:
        - key: {{ $key }}
          path: {{ $key }}
    {{- end }}
    {{- end }}
{{- end -}}
{{- end -}}
{{- end -}}
