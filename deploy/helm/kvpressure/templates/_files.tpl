{{/*
The chart has no copies of its own: it reads what kustomize reads. A missing file is a link that was not followed.
Takes (list SCOPE PATH); PATH is below files/.
*/}}
{{- define "kvpressure.file" -}}
{{- $path := printf "files/%s" (last .) -}}
{{- $text := (first .).Files.Get $path -}}
{{- if not $text -}}
{{- fail (printf "kvpressure: %s is not in the chart. Its files/ are symbolic links into a checkout: use one that has them, or a packaged chart." $path) -}}
{{- end -}}
{{- $text -}}
{{- end -}}

{{/*
Lays a map over another, in place: maps are merged, null takes a key away, all else replaces.
Takes (list BASE OVER), gives nothing.
*/}}
{{- define "kvpressure.overlay" -}}
{{- $base := first . -}}
{{- range $key, $value := last . -}}
{{- if kindIs "invalid" $value -}}
{{- $_ := unset $base $key -}}
{{- else if and (kindIs "map" $value) (kindIs "map" (get $base $key)) -}}
{{- include "kvpressure.overlay" (list (get $base $key) $value) -}}
{{- else -}}
{{- $_ := set $base $key $value -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/*
Applies one operation of a JSON patch, in place: those that our parts use, add (to a map, or at the end of a list) and
replace. Takes (list OBJECT OPERATION), gives nothing.
*/}}
{{- define "kvpressure.patch" -}}
{{- $at := first . -}}
{{- $operation := last . -}}
{{- $steps := splitList "/" (trimPrefix "/" $operation.path) -}}
{{- $append := eq (last $steps) "-" -}}
{{- $steps = ternary (initial $steps) $steps $append -}}
{{- range initial $steps -}}
{{- $at = index $at (ternary (atoi .) . (kindIs "slice" $at)) -}}
{{- end -}}
{{- if not (or (eq $operation.op "add") (and (eq $operation.op "replace") (not $append))) -}}
{{- fail (printf "kvpressure: the chart cannot %s %s" $operation.op $operation.path) -}}
{{- end -}}
{{- $key := last $steps -}}
{{- $value := $operation.value -}}
{{- if $append -}}{{- $value = append (get $at $key | default list) $value -}}{{- end -}}
{{- $_ := set $at $key $value -}}
{{- end -}}

{{/*
The pod template that kustomize copies into workloads, made from the very files it is made from there.
*/}}
{{- define "kvpressure.podTemplate" -}}
{{- $scope := . -}}
{{- $object := include "kvpressure.file" (list . "parts/pod/podtemplate.yaml") | fromYaml -}}
{{- range include "kvpressure.parts" . | splitList "," -}}
{{- $part := printf "parts/%s" . -}}
{{- $kustomization := include "kvpressure.file" (list $scope (printf "%s/kustomization.yaml" $part)) | fromYaml -}}
{{- range $kustomization.patches -}}
{{- if eq .target.kind "PodTemplate" -}}
{{- $text := .patch | default "" -}}
{{- if .path -}}{{- $text = include "kvpressure.file" (list $scope (printf "%s/%s" $part .path)) -}}{{- end -}}
{{- range fromYamlArray $text -}}{{- include "kvpressure.patch" (list $object .) -}}{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- toYaml $object.template -}}
{{- end -}}

{{/*
The parts that the values ask for, separated by commas, in the order in which kustomize's variants name them.
*/}}
{{- define "kvpressure.parts" -}}
{{- $parts := list "pod" -}}
{{- with .Values.sidecar -}}
{{- if .log.enabled -}}{{- $parts = append $parts "log" -}}{{- end -}}
{{- if .tap.enabled -}}{{- $parts = append $parts "tap" -}}{{- end -}}
{{- if and .tap.enabled (not .native) -}}{{- $parts = append $parts "classic-tap" -}}{{- end -}}
{{- $parts = append $parts (ternary "native" "classic" .native) -}}
{{- end -}}
{{- join "," $parts -}}
{{- end -}}
