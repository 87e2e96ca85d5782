module github.com/cuvmm/cuvmm

go 1.26
