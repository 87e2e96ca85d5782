package ipc_test

func (p *part) pool()     {}
func (p *part) importer() {}
