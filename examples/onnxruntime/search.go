package main

import (
	"errors"

	ort "github.com/yalue/onnxruntime_go"

	"github.com/cuvmm/cuvmm/growable"
)

// Search finds rows by a model of ONNX Runtime, which reads them where they are. Safe for
// concurrent use, and while the rows grow. The caller must Close it.
type Search struct {
	rows    *growable.Rows[float32]
	session *ort.DynamicAdvancedSession
}

// NewSearch needs ONNX Runtime's environment, and rows that the CPU can address, without padding.
func NewSearch(rows *growable.Rows[float32]) (*Search, error) {
	session, err := ort.NewDynamicAdvancedSessionWithONNXData(model(rows.Width()),
		[]string{"rows", "query", "k"}, []string{"scores", "indices"}, nil)
	if err != nil {
		return nil, err
	}
	return &Search{rows, session}, nil
}

// Close ends the session. The rows stay.
func (s *Search) Close() error { return s.session.Destroy() }

// Top returns the k rows whose product with the query is largest, and the products, of all rows
// that there are when it is called.
func (s *Search) Top(query []float32, k int) (indices []int64, scores []float32, err error) {
	n := s.rows.Len()
	if n == 0 || k <= 0 {
		return nil, nil, nil
	}
	rows, release, err := view(s.rows, n)
	if err != nil {
		return nil, nil, err
	}
	defer func() { err = errors.Join(err, release()) }()
	return s.run(rows, query, min(k, n))
}

// view is a tensor of the first n rows, where they are. Until release, every call that would drop
// or unmap one of them returns vmm.ErrBusy. The rows can grow meanwhile.
func view(rows *growable.Rows[float32], n int) (_ *ort.Tensor[float32], release func() error, err error) {
	drop, err := rows.Range().Hold(0, uint64(n)*uint64(rows.Pitch()))
	if err != nil {
		return nil, nil, err
	}
	all, err := rows.Host()
	if err != nil {
		drop()
		return nil, nil, err
	}
	// The rows are not memory of Go's, so ONNX Runtime may keep the pointer.
	tensor, err := ort.NewTensor(ort.NewShape(int64(n), int64(rows.Width())), all)
	if err != nil {
		drop()
		return nil, nil, err
	}
	return tensor, func() error {
		defer drop()
		return tensor.Destroy()
	}, nil
}

func (s *Search) run(rows ort.Value, query []float32, k int) (indices []int64, scores []float32, err error) {
	var made []ort.Value
	defer func() {
		for _, v := range made {
			err = errors.Join(err, v.Destroy())
		}
	}()
	queryTensor, err := newTensor(&made, query)
	if err != nil {
		return nil, nil, err
	}
	count, err := newTensor(&made, []int64{int64(k)})
	if err != nil {
		return nil, nil, err
	}
	best, err := newTensor(&made, make([]float32, k))
	if err != nil {
		return nil, nil, err
	}
	at, err := newTensor(&made, make([]int64, k))
	if err != nil {
		return nil, nil, err
	}
	if err := s.session.Run([]ort.Value{rows, queryTensor, count}, []ort.Value{best, at}); err != nil {
		return nil, nil, err
	}
	return at.GetData(), best.GetData(), nil
}

// newTensor makes a tensor of one dimension of data, and adds it to made.
func newTensor[T ort.TensorData](made *[]ort.Value, data []T) (*ort.Tensor[T], error) {
	t, err := ort.NewTensor(ort.NewShape(int64(len(data))), data)
	if err == nil {
		*made = append(*made, t)
	}
	return t, err
}
