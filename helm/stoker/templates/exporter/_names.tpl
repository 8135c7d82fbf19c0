{{- define "stoker.exporter.namespace" -}}
{{- default (printf "%s-exporter" .Release.Namespace) .Values.exporter.namespace -}}
{{- end -}}

{{- define "stoker.exporter.serviceAccountName" -}}
{{- if .Values.exporter.serviceAccount.create -}}
{{- default (printf "%s-exporter" (include "stoker.fullname" .)) .Values.exporter.serviceAccount.name -}}
{{- else -}}
{{- default "default" .Values.exporter.serviceAccount.name -}}
{{- end -}}
{{- end -}}

{{/* The Secret with the token that a scraper must send. */}}
{{- define "stoker.exporter.authSecret" -}}
{{- default (printf "%s-exporter-scrape" (include "stoker.fullname" .)) .Values.exporter.auth.secretName -}}
{{- end -}}

{{/* The volume source of the certificates by which the exporter trusts the api; nothing where there are none. */}}
{{- define "stoker.exporter.caVolume" -}}
{{- $ca := .Values.exporter.ca -}}
{{- if gt (len (compact (list $ca.configMap $ca.secret))) 1 -}}
{{- fail "exporter.ca: give one of configMap and secret" -}}
{{- end -}}
{{- if $ca.configMap -}}
configMap:
  name: {{ $ca.configMap }}
{{- else if $ca.secret -}}
secret:
  secretName: {{ $ca.secret }}
  items:
  - key: ca.crt
    path: ca.crt
{{- else if .Values.caBundle.pem -}}
configMap:
  name: {{ include "stoker.fullname" . }}-exporter-ca
{{- else if and .Values.api.tls.secretName (not .Values.api.url) (ne (include "stoker.exporter.namespace" .) .Release.Namespace) -}}
{{- fail "api.tls.secretName: the exporter, in a namespace of its own, has to trust the api's certificate; give its authority in caBundle.pem, exporter.ca.configMap or exporter.ca.secret" -}}
{{- end -}}
{{- end -}}
