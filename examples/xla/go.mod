module github.com/cuvmm/cuvmm/examples/xla

go 1.26.0

require (
	github.com/cuvmm/cuvmm v0.0.0
	github.com/gomlx/go-xla v0.1.4
	github.com/stretchr/testify v1.12.1
)

require (
	github.com/go-logr/logr v1.4.4 // indirect
	github.com/pkg/errors v0.9.1 // indirect
	github.com/x448/float16 v0.8.4 // indirect
	go.yaml.in/yaml/v3 v3.0.5 // indirect
	golang.org/x/sys v0.48.0 // indirect
	google.golang.org/protobuf v1.36.12 // indirect
	k8s.io/klog/v2 v2.140.0 // indirect
)

replace github.com/cuvmm/cuvmm => ../..
