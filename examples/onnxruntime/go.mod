module github.com/cuvmm/cuvmm/examples/onnxruntime

go 1.26.0

require (
	github.com/cuvmm/cuvmm v0.0.0
	github.com/stretchr/testify v1.12.1
	github.com/yalue/onnxruntime_go v1.27.0
)

require (
	go.yaml.in/yaml/v3 v3.0.5 // indirect
	golang.org/x/sys v0.48.0 // indirect
)

replace github.com/cuvmm/cuvmm => ../..
