{{/* Common to all policies: requests for TrainingJobs, except from Stoker itself; the api has checked the user's
permissions. */}}
{{- define "stoker.admission.others" -}}
- name: not-from-stoker
  expression: >-
    !(request.userInfo.username in [
    "system:serviceaccount:{{ .Release.Namespace }}:{{ include "stoker.api.serviceAccountName" . }}",
    "system:serviceaccount:{{ .Release.Namespace }}:{{ include "stoker.operator.serviceAccountName" . }}"])
{{- end -}}

{{/* (list "CREATE" "UPDATE") */}}
{{- define "stoker.admission.jobs" -}}
resourceRules:
- apiGroups: [stoker.dev]
  apiVersions: [v1alpha1]
  operations: {{ toJson . }}
  resources: [trainingjobs]
{{- end -}}

{{/* An object's head: (list $ "ValidatingAdmissionPolicy" "name"). */}}
{{- define "stoker.admission.named" -}}
{{- $root := index . 0 -}}
apiVersion: admissionregistration.k8s.io/v1
kind: {{ index . 1 }}
metadata:
  name: {{ index . 2 }}
  labels: {{- include "stoker.labels" (dict "root" $root) | nindent 4 }}
{{- end -}}
