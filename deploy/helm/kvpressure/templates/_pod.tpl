{{/*
The pod template with the values of the sidecar in it; the templates of _sidecar.tpl hand out its pieces.
*/}}
{{- define "kvpressure.pod" -}}
{{- $scope := . -}}
{{- $sidecar := .Values.sidecar -}}
{{- $pod := include "kvpressure.podTemplate" . | fromYaml -}}
{{- $container := first $pod.spec.containers -}}

{{- $_ := set $container "image" (include "kvpressure.image" .) -}}
{{- with $sidecar.image.pullPolicy -}}{{- $_ := set $container "imagePullPolicy" . -}}{{- end -}}
{{- with $sidecar.resources -}}{{- $_ := set $container "resources" . -}}{{- end -}}
{{- include "kvpressure.overlay" (list $container.securityContext $sidecar.securityContext) -}}
{{- include "kvpressure.overlay" (list $container.livenessProbe $sidecar.livenessProbe) -}}
{{- $_ := set $container "volumeMounts" (concat $container.volumeMounts $sidecar.extraVolumeMounts) -}}
{{- include "kvpressure.ports" (list . $container) -}}

{{- range $pod.spec.volumes -}}
{{- if .configMap -}}{{- $_ := set .configMap "name" (include "kvpressure.configMapName" (list $scope .configMap.name)) -}}{{- end -}}
{{- end -}}
{{- $_ := set $pod.spec "volumes" (concat $pod.spec.volumes $sidecar.extraVolumes) -}}
{{- toYaml $pod -}}
{{- end -}}

{{/*
Sets the ports that the values name, in the container's ports and arguments. Takes (list SCOPE CONTAINER), gives nothing.
*/}}
{{- define "kvpressure.ports" -}}
{{- $values := (first .).Values -}}
{{- $container := last . -}}
{{- $args := list -}}
{{- range $container.args -}}
{{- if hasPrefix "--tap.listen=" . -}}
{{- $args = append $args (printf "--tap.listen=:%d" (int $values.sidecar.tap.port)) -}}
{{- else -}}
{{- $args = append $args . -}}
{{- end -}}
{{- end -}}
{{- range $container.ports -}}
{{- if eq .name "kvpressure-tap" -}}
{{- $_ := set . "containerPort" (int $values.sidecar.tap.port) -}}
{{- else if ne (int .containerPort) (int $values.port) -}}
{{- $_ := set . "containerPort" (int $values.port) -}}
{{- $args = append $args (printf "--web.listen-address=:%d" (int $values.port)) -}}
{{- end -}}
{{- end -}}
{{- $_ := set $container "args" $args -}}
{{- end -}}

{{- define "kvpressure.vllm.origin" -}}
{{- printf "%s://127.0.0.1:%d" .scheme (int .port) -}}
{{- end -}}

{{- define "kvpressure.image" -}}
{{- with .Values.sidecar.image -}}
{{- .repository }}:{{ .tag | default $.Chart.AppVersion }}{{ with .digest }}@{{ . }}{{ end -}}
{{- end -}}
{{- end -}}

{{/*
Two releases in one namespace do not share ConfigMaps, so the names start with the release's, and the dependency's where
it has an alias. Takes (list SCOPE NAME); NAME is kustomize's, without the hash.
*/}}
{{- define "kvpressure.configMapName" -}}
{{- $scope := first . -}}
{{- printf "%s-%s" $scope.Release.Name (last . | replace "kvpressure" $scope.Chart.Name) -}}
{{- end -}}

{{/*
What the ConfigMaps hold: a map of names to files and their texts.
*/}}
{{- define "kvpressure.configMapData" -}}
{{- $scope := . -}}
{{- $data := dict -}}
{{- range include "kvpressure.parts" . | splitList "," -}}
{{- $part := printf "parts/%s" . -}}
{{- $kustomization := include "kvpressure.file" (list $scope (printf "%s/kustomization.yaml" $part)) | fromYaml -}}
{{- range $kustomization.configMapGenerator -}}
{{- $texts := dict -}}
{{- range .files -}}
{{- $text := include "kvpressure.file" (list $scope (printf "%s/%s" $part .)) -}}
{{- if eq . "kvpressure.yml" -}}{{- $text = include "kvpressure.settings" (list $scope $text) -}}{{- end -}}
{{- $_ := set $texts . $text -}}
{{- end -}}
{{- $_ := set $data .name (dict "labels" .options.labels "data" $texts) -}}
{{- end -}}
{{- end -}}
{{- toYaml $data -}}
{{- end -}}

{{/*
kvpressure.yml with the values over it. Takes (list SCOPE TEXT).
*/}}
{{- define "kvpressure.settings" -}}
{{- $sidecar := (first .).Values.sidecar -}}
{{- $settings := last . | fromYaml -}}
{{- $origin := include "kvpressure.vllm.origin" $sidecar.vllm -}}
{{- include "kvpressure.overlay" (list $settings (dict "vllm" (dict "url" (printf "%s/metrics" $origin)) "tap" (dict "upstream" $origin))) -}}
{{- if and $sidecar.log.enabled (dig "log" "path" "" $sidecar.config) -}}
{{- fail "kvpressure: sidecar.log.enabled follows a log of its own; leave sidecar.config.log.path out, or follow yours without it" -}}
{{- end -}}
{{- include "kvpressure.overlay" (list $settings $sidecar.config) -}}
{{- toYaml $settings -}}
{{- end -}}
