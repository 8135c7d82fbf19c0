{{/* Names. */}}
{{- define "stoker.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 50 | trimSuffix "-" -}}
{{- end -}}

{{/* What every object's name begins with. */}}
{{- define "stoker.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 40 | trimSuffix "-" -}}
{{- else if contains (include "stoker.name" .) .Release.Name -}}
{{- .Release.Name | trunc 40 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name (include "stoker.name" .) | trunc 40 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{/* Labels by which a component's pods are found: (dict "root" $ "component" "api"). They never change. */}}
{{- define "stoker.selectorLabels" -}}
app.kubernetes.io/name: {{ include "stoker.name" .root }}
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .component }}
{{- end -}}

{{/* Labels of everything: the same argument; without a component for what several share. */}}
{{- define "stoker.labels" -}}
app.kubernetes.io/name: {{ include "stoker.name" .root }}
app.kubernetes.io/instance: {{ .root.Release.Name }}
{{- with .component }}
app.kubernetes.io/component: {{ . }}
{{- end }}
app.kubernetes.io/part-of: stoker
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name .root.Chart.Version | replace "+" "_" | trunc 63 | trimSuffix "-" }}
{{- with .root.Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/* An image's full name: (dict "root" $ "image" .Values.image.controlPlane). */}}
{{- define "stoker.image" -}}
{{- $registry := .root.Values.image.registry | trimSuffix "/" -}}
{{- if $registry }}{{ $registry }}/{{ end -}}
{{- .image.repository -}}
{{- if .image.digest }}@{{ .image.digest }}{{ else }}:{{ default .root.Chart.AppVersion .image.tag }}{{ end -}}
{{- end -}}

{{- define "stoker.operator.serviceAccountName" -}}
{{- if .Values.operator.serviceAccount.create -}}
{{- default (printf "%s-operator" (include "stoker.fullname" .)) .Values.operator.serviceAccount.name -}}
{{- else -}}
{{- default "default" .Values.operator.serviceAccount.name -}}
{{- end -}}
{{- end -}}

{{- define "stoker.api.serviceAccountName" -}}
{{- if .Values.api.serviceAccount.create -}}
{{- default (printf "%s-api" (include "stoker.fullname" .)) .Values.api.serviceAccount.name -}}
{{- else -}}
{{- default "default" .Values.api.serviceAccount.name -}}
{{- end -}}
{{- end -}}

{{/* The api's Service as the pods of other namespaces call it. */}}
{{- define "stoker.api.host" -}}
{{- printf "%s-api.%s.svc" (include "stoker.fullname" .) .Release.Namespace -}}
{{- end -}}

{{- define "stoker.api.scheme" -}}
{{- if .Values.api.tls.secretName }}https{{ else }}http{{ end -}}
{{- end -}}

{{/* Where workers report. */}}
{{- define "stoker.api.url" -}}
{{- if .Values.api.url -}}
{{- .Values.api.url -}}
{{- else -}}
{{- printf "%s://%s:%d" (include "stoker.api.scheme" .) (include "stoker.api.host" .) (int .Values.api.service.port) -}}
{{- end -}}
{{- end -}}

{{/* The pod's security context that the restricted Pod Security Standard asks for. */}}
{{- define "stoker.podSecurity" -}}
runAsNonRoot: true
seccompProfile:
  type: RuntimeDefault
{{- end -}}

{{/* Of a pod: what pulls its image, and where it goes: (dict "of" .Values.api "pullSecrets" .Values.image.pullSecrets). */}}
{{- define "stoker.placement" -}}
{{- with .pullSecrets -}}
imagePullSecrets:
{{- range . }}
- name: {{ . }}
{{- end }}
{{ end -}}
{{- with .of.priorityClassName -}}
priorityClassName: {{ . }}
{{ end -}}
{{- range $name := list "nodeSelector" "tolerations" "affinity" -}}
{{- with index $.of $name -}}
{{ $name }}: {{- toYaml . | nindent 2 }}
{{ end -}}
{{- end -}}
{{- end -}}

{{- define "stoker.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
{{- end -}}

{{/* The volume source of the certificates that workers trust; nothing where there are none. */}}
{{- define "stoker.caVolume" -}}
{{- $ca := .Values.caBundle -}}
{{- if gt (len (compact (list $ca.pem $ca.configMap.name $ca.secret.name))) 1 -}}
{{- fail "caBundle: give one of pem, configMap.name and secret.name" -}}
{{- end -}}
{{- if $ca.pem -}}
configMap:
  name: {{ include "stoker.fullname" . }}-ca
  items:
  - key: ca.crt
    path: ca.crt
{{- else if $ca.configMap.name -}}
configMap:
  name: {{ $ca.configMap.name }}
  items:
  - key: {{ $ca.configMap.key }}
    path: ca.crt
{{- else if $ca.secret.name -}}
secret:
  secretName: {{ $ca.secret.name }}
  items:
  - key: {{ $ca.secret.key }}
    path: ca.crt
{{- else if and .Values.api.tls.secretName (not .Values.api.url) -}}
{{- fail "api.tls.secretName: workers have to trust the api's certificate; give its authority in caBundle (the same Secret with key ca.crt, say), or name another way to the api in api.url" -}}
{{- end -}}
{{- end -}}

{{/* By which Prometheus is known to the api and the operators. */}}
{{- define "stoker.scrape.authorization" -}}
{{- with .Values.monitoring.serviceMonitor.credentials -}}
{{- if .secretName -}}
authorization:
  credentials:
    name: {{ .secretName }}
    key: {{ .key }}
{{- else -}}
bearerTokenFile: /var/run/secrets/kubernetes.io/serviceaccount/token # Prometheus' own
{{- end -}}
{{- end -}}
{{- end -}}

{{/* As a NetworkPolicy peer: the pods of Prometheus' namespace. */}}
{{- define "stoker.scrape.peers" -}}
- namespaceSelector:
    matchLabels:
      kubernetes.io/metadata.name: {{ default .Release.Namespace .Values.monitoring.scraper.namespace }}
{{- end -}}

{{/* What operator and api may reach: names, and the API server. */}}
{{- define "stoker.egress" -}}
- ports:
  {{- range .Values.networkPolicy.egress.dns.ports }}
  - port: {{ . }}
    protocol: UDP
  - port: {{ . }}
    protocol: TCP
  {{- end }}
  {{- with .Values.networkPolicy.egress.dns.to }}
  to: {{- toYaml . | nindent 2 }}
  {{- end }}
- ports:
  {{- range .Values.networkPolicy.egress.apiServer.ports }}
  - port: {{ . }}
    protocol: TCP
  {{- end }}
  {{- with .Values.networkPolicy.egress.apiServer.to }}
  to: {{- toYaml . | nindent 2 }}
  {{- end }}
{{- with .Values.monitoring.push.url }}
{{- $at := urlParse . }}
- ports: # the receiver of pushes
  - port: {{ regexFind "[0-9]+$" (regexFind ":[0-9]+$" $at.host) | default (ternary "443" "80" (eq $at.scheme "https")) }}
    protocol: TCP
{{- end }}
{{- end -}}

{{/* Names in Host headers: every form of the Service's name, the Ingress', and what else the values name. */}}
{{- define "stoker.api.names" -}}
{{- $short := printf "%s-api" (include "stoker.fullname" .) -}}
{{- $long := include "stoker.api.host" . -}}
{{- $names := list $short (trimSuffix ".svc" $long) $long (printf "%s.%s" $long .Values.clusterDomain) -}}
{{- if .Values.api.ingress.enabled -}}
{{- $names = append $names .Values.api.ingress.host -}}
{{- end -}}
{{- concat $names .Values.api.allowHosts | uniq | toYaml -}}
{{- end -}}

{{/* (list $ "/readyz") */}}
{{- define "stoker.api.probe" -}}
{{- $root := index . 0 -}}
path: {{ index . 1 }}
port: api
scheme: {{ include "stoker.api.scheme" $root | upper }}
{{- end -}}

{{/* The role of this name, cluster-wide unless `kind` says Role, for a component's account:
     (dict "root" $ "component" "api" "name" $name). */}}
{{- define "stoker.binding" -}}
{{- $kind := default "ClusterRole" .kind }}
apiVersion: rbac.authorization.k8s.io/v1
kind: {{ $kind }}Binding
metadata:
  name: {{ .name }}
{{- if eq $kind "Role" }}
  namespace: {{ .root.Release.Namespace }}
{{- end }}
  labels: {{- include "stoker.labels" . | nindent 4 }}
roleRef:
  apiGroup: rbac.authorization.k8s.io
  kind: {{ $kind }}
  name: {{ .name }}
subjects:
- kind: ServiceAccount
  name: {{ include (printf "stoker.%s.serviceAccountName" .component) .root }}
  namespace: {{ .root.Release.Namespace }}
{{- end -}}

{{/* A ClusterRole of this name for every authenticated user: (list $ "name"). */}}
{{- define "stoker.authenticated" -}}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata:
  name: {{ index . 1 }}
  labels: {{- include "stoker.labels" (dict "root" (index . 0)) | nindent 4 }}
roleRef:
  apiGroup: rbac.authorization.k8s.io
  kind: ClusterRole
  name: {{ index . 1 }}
subjects:
- apiGroup: rbac.authorization.k8s.io
  kind: Group
  name: system:authenticated
{{- end -}}

{{/* Fails where the api's claim would wait for ever: no class is named, and the cluster has no default. Only Helm on a
     cluster can look; a claim of an earlier installation has its class. */}}
{{- define "stoker.api.requireStorageClass" -}}
{{- $claim := printf "%s-api-data" (include "stoker.fullname" .) }}
{{- if and (not .Values.api.persistence.storageClass) (lookup "v1" "Namespace" "" "kube-system") (not (lookup "v1" "PersistentVolumeClaim" .Release.Namespace $claim)) }}
{{- $found := false }}
{{- range (lookup "storage.k8s.io/v1" "StorageClass" "" "").items }}
{{- if eq (toString (index (default (dict) .metadata.annotations) "storageclass.kubernetes.io/is-default-class")) "true" }}
{{- $found = true }}
{{- end }}
{{- end }}
{{- if not $found }}
{{- fail "this cluster has no default StorageClass for the api's volume: set api.persistence.storageClass to one of `kubectl get storageclass`, to - for a volume without a class, or set api.persistence.existingClaim; api.persistence.enabled=false keeps nothing" }}
{{- end }}
{{- end }}
{{- end }}
