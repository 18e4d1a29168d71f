{{/*
What other charts include. Each takes this chart's own scope, `.Subcharts.kvpressure` (or its alias), and gives nothing
where there is nothing to add, so that `with` leaves a field out:

  {{- with include "kvpressure.initContainers" .Subcharts.kvpressure }}
  initContainers:
    {{- . | nindent 4 }}
  {{- end }}
*/}}

{{/* A pod's initContainers: the native sidecar. */}}
{{- define "kvpressure.initContainers" -}}
{{- if and (include "kvpressure.enabled" .) .Values.sidecar.native -}}
{{- if semverCompare "<1.29.0-0" .Capabilities.KubeVersion.Version -}}
{{- fail (printf "kvpressure: Kubernetes %s starts no native sidecars; set sidecar.native to false" .Capabilities.KubeVersion.Version) -}}
{{- end -}}
{{- list (include "kvpressure.container" . | fromYaml) | toYaml -}}
{{- end -}}
{{- end -}}

{{/* A pod's containers: the sidecar as an ordinary one. */}}
{{- define "kvpressure.containers" -}}
{{- if and (include "kvpressure.enabled" .) (not .Values.sidecar.native) -}}
{{- list (include "kvpressure.container" . | fromYaml) | toYaml -}}
{{- end -}}
{{- end -}}

{{/* The container alone, native or not as the values say. */}}
{{- define "kvpressure.container" -}}
{{- if include "kvpressure.enabled" . -}}
{{- first (include "kvpressure.pod" . | fromYaml).spec.containers | toYaml -}}
{{- end -}}
{{- end -}}

{{/* A pod's volumes. */}}
{{- define "kvpressure.volumes" -}}
{{- if include "kvpressure.enabled" . -}}
{{- (include "kvpressure.pod" . | fromYaml).spec.volumes | toYaml -}}
{{- end -}}
{{- end -}}

{{/* A pod's labels, by which Prometheus finds it. */}}
{{- define "kvpressure.podLabels" -}}
{{- if include "kvpressure.enabled" . -}}
{{- (include "kvpressure.pod" . | fromYaml).metadata.labels | toYaml -}}
{{- end -}}
{{- end -}}

{{/* A pod's annotations: the pods are rolled when the settings change. */}}
{{- define "kvpressure.podAnnotations" -}}
{{- if include "kvpressure.enabled" . -}}
checksum/{{ .Chart.Name }}: {{ include "kvpressure.configMapData" . | sha256sum }}
{{- end -}}
{{- end -}}

{{/* The env of vLLM's container, for the log. */}}
{{- define "kvpressure.vllm.env" -}}
{{- if and (include "kvpressure.enabled" .) .Values.sidecar.log.enabled -}}
{{- (include "kvpressure.vllm.container" . | fromYaml).env | toYaml -}}
{{- end -}}
{{- end -}}

{{/* The volumeMounts of vLLM's container, for the log. */}}
{{- define "kvpressure.vllm.volumeMounts" -}}
{{- if and (include "kvpressure.enabled" .) .Values.sidecar.log.enabled -}}
{{- (include "kvpressure.vllm.container" . | fromYaml).volumeMounts | toYaml -}}
{{- end -}}
{{- end -}}

{{- define "kvpressure.vllm.container" -}}
{{- range (include "kvpressure.pod" . | fromYaml).spec.containers -}}
{{- if eq .name "vllm" -}}{{- toYaml . -}}{{- end -}}
{{- end -}}
{{- end -}}

{{/*
A Service's targetPort: vLLM's own, or the tap's. Whether it is there and whether it is used are two values: a Service
that changed together with the pods would lead to a port that those before the change do not have.
*/}}
{{- define "kvpressure.targetPort" -}}
{{- $tap := and (include "kvpressure.enabled" .) .Values.sidecar.tap.enabled .Values.sidecar.tap.serve -}}
{{- ternary .Values.sidecar.tap.port .Values.sidecar.vllm.port (not (not $tap)) | int -}}
{{- end -}}

{{- define "kvpressure.enabled" -}}
{{- if not (and .Values (hasKey .Values "sidecar")) -}}
{{- fail "kvpressure: its templates take the chart's own scope: include \"kvpressure...\" .Subcharts.kvpressure" -}}
{{- end -}}
{{- if .Values.sidecar.enabled -}}true{{- end -}}
{{- end -}}
