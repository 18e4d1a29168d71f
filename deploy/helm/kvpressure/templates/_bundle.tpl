{{/*
Gives an object the namespace and the labels that the values name. Takes (list SCOPE OBJECT), gives nothing.
*/}}
{{- define "kvpressure.placed" -}}
{{- $monitoring := (first .).Values.monitoring -}}
{{- $metadata := (last .).metadata -}}
{{- if and $monitoring.namespace $metadata.namespace -}}{{- $_ := set $metadata "namespace" $monitoring.namespace -}}{{- end -}}
{{- with $monitoring.labels -}}{{- $_ := set $metadata "labels" . -}}{{- end -}}
{{- end -}}
